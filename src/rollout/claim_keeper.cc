#include "rollout/claim_keeper.h"

#include <fmt/format.h>

#include "base/files.h"
#include "base/log.h"
#include "rollout/worker_counter.h"
#include "sync/store_access.h"

namespace flotilla {
namespace {

constexpr std::size_t kReadBytesMax = 65'536;  // of a claim, or of a worker's status

ClaimBook::Options book_options(const ClaimKeeper::Options& options) {
  return {.layout = options.layout,
          .worker = worker_id(options.key->public_key()),
          .order = options.order,
          .lease = options.lease,
          .seed = options.seed,
          .write = [run = options.layout.prefix,
                    key = options.key](const ClaimId& id) { return claim_to_json(run, id, *key); },
          .read = [run = options.layout.prefix](const ClaimId& id, std::string_view text) -> std::optional<WorkerId> {
            auto holder = claim_holder(text, run, id);
            if (!holder.ok()) return std::nullopt;
            return *std::move(holder);
          },
          .group_key = options.group_key};
}

}  // namespace

ClaimKeeper::ClaimKeeper(ObjectStore& store, Options options, EventSink& events, const Clock& clock)
    : store_(store),
      options_(std::move(options)),
      events_(events),
      clock_(clock),
      retrier_(options_.retry, options_.seed, events, clock),
      book_(book_options(options_)) {}

Result<std::unique_ptr<ClaimKeeper>> ClaimKeeper::open(ObjectStore& store, Options options, EventSink& events,
                                                       const Clock& clock) {
  std::unique_ptr<ClaimKeeper> keeper(new ClaimKeeper(store, std::move(options), events, clock));
  const auto text = read_text_file(keeper->options_.file);
  if (text.ok()) {
    FLOTILLA_RETURN_IF_ERROR(keeper->book_.restore(*text).with_context(keeper->options_.file.string()));
  } else if (text.status().code() != StatusCode::kNotFound) {
    return text.status();
  }
  keeper->thread_ = std::jthread([keeper = keeper.get()](const std::stop_token& stop) { keeper->work(stop); });
  return keeper;
}

ClaimKeeper::~ClaimKeeper() {
  thread_.request_stop();
  if (thread_.joinable()) thread_.join();
}

bool ClaimKeeper::wait_for(std::int64_t wanted, std::chrono::milliseconds time, const std::stop_token& stop) {
  std::unique_lock lock(mutex_);
  wanted_ = wanted;
  ready_ = false;
  changed_.notify_all();
  changed_.wait_for(lock, stop, time, [this] { return ready_ || !failure_.ok(); });
  return book_.available(clock_.monotonic()) > 0;
}

std::vector<std::uint64_t> ClaimKeeper::take(std::int64_t count) {
  const std::lock_guard lock(mutex_);
  auto counters = book_.take(count, clock_.monotonic());
  ready_ = false;
  changed_.notify_all();
  return counters;
}

Status ClaimKeeper::made(std::uint64_t counter, Version version) {
  const std::lock_guard lock(mutex_);
  book_.made(counter, version);
  return save();
}

void ClaimKeeper::uploaded(std::uint64_t counter) {
  const std::lock_guard lock(mutex_);
  book_.uploaded(counter);
  // Without the file the next life asks the hub for the group.
  if (const Status saved = save(); !saved.ok()) log_warning("rollout", "claims: {}", saved.to_string());
  ready_ = false;
  changed_.notify_all();
}

nlohmann::json ClaimKeeper::held() const {
  const std::lock_guard lock(mutex_);
  return book_.held();
}

Status ClaimKeeper::status() const {
  const std::lock_guard lock(mutex_);
  return failure_;
}

Status ClaimKeeper::save() {
  if (saved_ == book_.revision()) return ok_status();
  FLOTILLA_RETURN_IF_ERROR(write_file_atomically(options_.file, book_.save()));
  saved_ = book_.revision();
  return ok_status();
}

Result<ClaimAnswer> ClaimKeeper::perform(const ClaimCall& call, const std::stop_token& stop) {
  ClaimAnswer answer;
  const auto attempt = [&]() -> Status {
    switch (call.kind) {
      case ClaimCall::Kind::kList: {
        FLOTILLA_ASSIGN_OR_RETURN(answer.page, store_.list(call.key, call.after, call.limit));
        return ok_status();
      }
      case ClaimCall::Kind::kGet: {
        const auto bytes = read_small(store_, call.key, kReadBytesMax);
        answer.bytes = bytes.ok() ? as_text(*bytes) : std::string();
        // What is too long says nothing.
        return bytes.status().code() == StatusCode::kDataLoss ? ok_status() : bytes.status();
      }
      case ClaimCall::Kind::kExists: return store_.head(call.key).status();
      case ClaimCall::Kind::kCreate: return store_.put_if_absent(call.key, as_bytes(call.bytes)).status();
    }
    return internal_error("no such operation");
  };
  const char* name = call.kind == ClaimCall::Kind::kList     ? "list"
                     : call.kind == ClaimCall::Kind::kCreate ? "put"
                                                             : "get";
  const Status status = retrier_.run(name, call.key, stop, [&]() -> Status {
    Status tried = attempt();
    answer.code = tried.code();
    const bool answered = tried.code() == StatusCode::kNotFound || tried.code() == StatusCode::kAlreadyExists;
    return answered ? ok_status() : tried;
  });
  FLOTILLA_RETURN_IF_ERROR(status);
  return answer;
}

void ClaimKeeper::work(const std::stop_token& stop) {
  std::unique_lock lock(mutex_);
  while (!stop.stop_requested()) {
    const auto call = book_.next_call(wanted_, clock_.monotonic());
    if (!call) {
      ready_ = true;
      changed_.notify_all();
      // A lease that is held is looked at from time to time.
      changed_.wait_for(lock, stop, options_.lease / 4, [this] { return !ready_; });
      continue;
    }
    lock.unlock();
    auto answer = perform(*call, stop);
    lock.lock();
    if (!answer.ok() && stop.stop_requested()) return;
    Status status = answer.status();
    if (status.ok()) {
      ++requests_;
      book_.answer(*answer, clock_.monotonic());
      // Nothing is given out that the next life would not know of.
      status = save();
    }
    if (!status.ok()) {
      failure_ = status.with_context("claims");
      changed_.notify_all();
      return;
    }
    if (const auto claim = book_.take_news()) {
      events_.emit({"worker.claim",
                    {{"epoch", claim->epoch},
                     {"block", claim->block},
                     {"lease", claim->lease},
                     {"requests", std::exchange(requests_, 0)}}});
    }
  }
}

}  // namespace flotilla
