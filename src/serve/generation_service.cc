#include "serve/generation_service.h"

#include <utility>

namespace flotilla {
namespace {

Status stopping() { return unavailable("the server is stopping"); }

}  // namespace

GenerationService::GenerationService(Engine& engine, const Tokenizer& tokenizer, SchedulerLimits limits,
                                     ServeMetrics& metrics, const Clock& clock)
    : clock_(clock),
      metrics_(metrics),
      engine_(engine),
      scheduler_(engine, tokenizer, limits),
      context_(scheduler_.context()) {
  metrics_.observe(scheduler_.counts(), engine_.usage());
  thread_ = std::jthread([this] { run(); });
}

GenerationService::~GenerationService() { stop(std::chrono::nanoseconds(0)); }

RequestId GenerationService::submit(GenerationRequest request, Sink sink) {
  std::unique_lock lock(mutex_);
  const RequestId id(++last_id_);
  if (gone_) {
    lock.unlock();
    sink({.request = id, .end = stopping()});
    return id;
  }
  submissions_.push_back({id, std::move(request), std::move(sink)});
  wake_.notify_one();
  return id;
}

void GenerationService::cancel(RequestId id) {
  const std::lock_guard lock(mutex_);
  cancellations_.push_back(id);
  wake_.notify_one();
}

void GenerationService::stop(std::chrono::nanoseconds grace) {
  {
    const std::lock_guard lock(mutex_);
    stop_at_ = clock_.monotonic() + grace;
    wake_.notify_one();
  }
  if (thread_.joinable()) thread_.join();
}

void GenerationService::run() {
  for (;;) {
    std::vector<Submission> submissions;
    std::vector<RequestId> cancellations;
    std::optional<std::chrono::nanoseconds> stop_at;
    {
      std::unique_lock lock(mutex_);
      wake_.wait(lock, [&] {
        return !scheduler_.idle() || !submissions_.empty() || !cancellations_.empty() || stop_at_.has_value();
      });
      submissions = std::exchange(submissions_, {});
      cancellations = std::exchange(cancellations_, {});
      stop_at = stop_at_;
    }
    for (Submission& submission : submissions) begin(std::move(submission), stop_at.has_value());
    for (const RequestId id : cancellations) scheduler_.end(id, cancelled("the client has left"));
    if (stop_at && clock_.monotonic() >= *stop_at) scheduler_.end_all(stopping());
    scheduler_.step(clock_.monotonic());
    metrics_.observe(scheduler_.counts(), engine_.usage());
    deliver();
    if (stop_at && scheduler_.idle()) {
      const std::lock_guard lock(mutex_);
      gone_ = submissions_.empty();
      if (gone_) return;
    }
  }
}

void GenerationService::begin(Submission submission, bool refuse) {
  Status status =
      refuse ? stopping() : scheduler_.submit(submission.id, std::move(submission.request), clock_.monotonic());
  if (status.ok()) {
    sinks_.emplace(submission.id, std::move(submission.sink));
  } else {
    submission.sink({.request = submission.id, .end = std::move(status)});
  }
}

void GenerationService::deliver() {
  for (GenerationEvent& event : scheduler_.take_events()) {
    const auto sink = sinks_.find(event.request);
    const bool last = event.end.has_value();
    sink->second(std::move(event));
    if (last) sinks_.erase(sink);
  }
}

}  // namespace flotilla
