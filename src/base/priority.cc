#include "base/priority.h"

#include <fmt/format.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace flotilla {
namespace {

// linux/ioprio.h, which is not installed everywhere.
constexpr int kIoThread = 1;  // IOPRIO_WHO_PROCESS: a thread, 0 is the calling one
constexpr int kIoBestEffortLowest = 2 << 13 | 7;
constexpr int kIoIdle = 3 << 13;

bool set_policy(int policy) {
  const sched_param none{};
  return sched_setscheduler(0, policy, &none) == 0;
}

}  // namespace

Status lower_priority(Priority priority) {
  const bool idle = priority == Priority::kIdle;
  const bool has_policy = (idle && set_policy(SCHED_IDLE)) || set_policy(SCHED_BATCH);
  // Also under SCHED_IDLE, which /proc/stat does not tell from ordinary time; niced time it does.
  const bool niced = setpriority(PRIO_PROCESS, 0, idle ? 19 : 10) == 0;
  const int error = errno;
  syscall(SYS_ioprio_set, kIoThread, 0, idle ? kIoIdle : kIoBestEffortLowest);  // a kernel without it has no disk queue
  if (has_policy || niced) return ok_status();
  return unavailable(fmt::format("the system refuses a lower priority: {}", std::strerror(error)));
}

}  // namespace flotilla
