#include "rollout/worker_counter.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <limits>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/files.h"
#include "base/hashing.h"
#include "model/strict_json.h"

namespace flotilla {
namespace {

constexpr int kCounterFormat = 1;

}  // namespace

WorkerId worker_id(const PublicKey& key) { return WorkerId(sha256(ByteSpan(key)).to_hex().substr(0, 32)); }

Result<std::unique_ptr<WorkerCounter>> WorkerCounter::open(const std::filesystem::path& folder, std::string_view run,
                                                           const WorkerId& worker) {
  const std::filesystem::path parent = folder / run;
  std::error_code error;
  std::filesystem::create_directories(parent, error);
  if (error) return errno_status(error.value(), fmt::format("create folder {}", parent.string()));
  const std::filesystem::path lock_path = parent / (worker.value() + ".lock");
  const int lock = ::open(lock_path.c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0600);
  if (lock < 0) return errno_status(errno, fmt::format("open {}", lock_path.string()));
  std::unique_ptr<WorkerCounter> counter(
      new WorkerCounter(parent / (worker.value() + ".json"), std::string(run), worker, lock));
  if (::flock(lock, LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK) return errno_status(errno, fmt::format("lock {}", lock_path.string()));
    return failed_precondition(fmt::format("worker {} is at work for run {} in another process ({} is locked)",
                                           worker.value(), run, lock_path.string()));
  }
  FLOTILLA_RETURN_IF_ERROR(counter->load().with_context(counter->path_.string()));
  return counter;
}

WorkerCounter::~WorkerCounter() { ::close(lock_); }

Status WorkerCounter::load() {
  const auto text = read_text_file(path_);
  if (text.status().code() == StatusCode::kNotFound) return ok_status();
  FLOTILLA_RETURN_IF_ERROR(text.status());
  FLOTILLA_ASSIGN_OR_RETURN(const nlohmann::json state, parse_strict_json(*text));
  const nlohmann::json expected = {{"format", kCounterFormat}, {"run", run_}, {"worker", worker_.value()}};
  for (const auto& [name, value] : expected.items()) {
    if (!state.is_object() || !state.contains(name) || state[name] != value) {
      return data_loss(fmt::format("{} is not {}", name, value.dump()));
    }
  }
  if (!state.contains("next") || !state["next"].is_number_unsigned()) return data_loss("next is not a number");
  next_ = state["next"].get<std::uint64_t>();
  return ok_status();
}

Result<std::uint64_t> WorkerCounter::take(std::uint64_t count) {
  if (count > std::numeric_limits<std::uint64_t>::max() - next_) return internal_error("worker counter overflows");
  const nlohmann::json state = {
      {"format", kCounterFormat}, {"run", run_}, {"worker", worker_.value()}, {"next", next_ + count}};
  FLOTILLA_RETURN_IF_ERROR(write_file_atomically(path_, state.dump() + "\n"));
  const std::uint64_t first = next_;
  next_ += count;
  return first;
}

}  // namespace flotilla
