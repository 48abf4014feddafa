#include <malloc.h>
#include <unistd.h>

#include <cstdlib>
#include <exception>
#include <filesystem>
#include <iostream>
#include <limits>
#include <string>
#include <vector>

#include "cli/stop_signals.h"
#include "learn/learner_program.h"
#include "learn/torch/torch_trainer.h"

namespace {

// libtorch's threads (OpenMP) wait for each other by spinning, which takes the processor from workers on the same
// machine and, when there are more threads than cores, from each other. The runtime reads its setting when it is
// loaded, before main: hence the second start. Without /proc the first one goes on.
void wait_without_spinning(char** argv) {
  if (std::getenv("OMP_WAIT_POLICY") != nullptr) return;
  ::setenv("OMP_WAIT_POLICY", "passive", 1);
  std::error_code error;
  const std::filesystem::path self = std::filesystem::read_symlink("/proc/self/exe", error);
  if (!error) ::execv(self.c_str(), argv);
}

// A step's tensors are freed and come again in the next. As mappings of their own the system would clear every page of
// them each time.
void keep_freed_memory() {
#if defined(__GLIBC__)
  ::mallopt(M_MMAP_MAX, 0);
  ::mallopt(M_TRIM_THRESHOLD, std::numeric_limits<int>::max());
#endif
}

}  // namespace

int main(int argc, char** argv) {
  wait_without_spinning(argv);
  keep_freed_memory();
  flotilla::StopSignals signals;
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  try {
    const flotilla::Status status =
        flotilla::run_learner_program(arguments, flotilla::make_torch_trainer, signals.token());
    if (status.ok()) return 0;
    std::cerr << "flotilla: " << status.message() << "\n";  // as the program that a person started
    return status.code() == flotilla::StatusCode::kInvalidArgument ? 2 : 1;
  } catch (const std::exception& error) {
    std::cerr << "flotilla: " << error.what() << "\n";
    return 1;
  }
}
