#include "learn/retention_keeper.h"

#include <limits>

#include <fmt/format.h>

#include "base/log.h"

namespace flotilla {
namespace {

constexpr const char* kLog = "retention";

}  // namespace

RetentionRules retention_rules(const RunConfig& config) {
  RetentionRules rules;
  rules.staleness = static_cast<std::uint64_t>(config.learner.max_staleness);
  rules.groups = std::chrono::ceil<std::chrono::seconds>(config.retention.groups);
  return rules;
}

RetentionKeeper::RetentionKeeper(RunRetention retention, Options options, EventSink& events,
                                 std::function<void()> after, const Clock& clock)
    : options_(std::move(options)),
      events_(events),
      after_(std::move(after)),
      clock_(clock),
      leave_(options_.stop, [this] { leaving_.request_stop(); }),
      retention_(std::move(retention)) {
  if (options_.every.count() > 0 || options_.after_every.count() > 0)
    thread_ = std::jthread([this](const std::stop_token& stop) { work(stop); });
}

RetentionKeeper::~RetentionKeeper() { leaving_.request_stop(); }

void RetentionKeeper::work(const std::stop_token& stop) {
  const bool looks = options_.every.count() > 0;
  while (true) {
    {
      std::unique_lock lock(mutex_);
      if (wake_.wait_for(lock, stop, looks ? options_.every : options_.after_every,
                         [&] { return stop.stop_requested(); }) ||
          stop.stop_requested())
        return;
    }
    const auto removed = looks ? look(options_.rules, options_.objects_max, stop) : Result<std::uint64_t>(0);
    if (!removed.ok() && removed.status().code() != StatusCode::kNotFound && !stop.stop_requested()) {
      log_warning(kLog, "nothing more is removed this time: {}", removed.status().to_string());
    }
    after_();
  }
}

Result<std::uint64_t> RetentionKeeper::look(const RetentionRules& rules, std::size_t objects_max,
                                            const std::stop_token& stop) {
  const std::lock_guard lock(looking_);
  const auto began = clock_.monotonic();
  FLOTILLA_ASSIGN_OR_RETURN(const RetentionPlan plan, retention_.plan(rules));
  const RunRetention::Removed removed = retention_.remove(plan, objects_max, stop);
  if (removed.objects > 0) {
    events_.emit({"learner.clean",
                  {{"objects", removed.objects},
                   {"bytes", removed.bytes},
                   {"left", plan.remove.size() - removed.objects},
                   {"seconds", std::chrono::duration<double>(clock_.monotonic() - began).count()}}});
  }
  if (!removed.status.ok()) return removed.status;
  return removed.objects;
}

Status RetentionKeeper::make_room() {
  RetentionRules rules = options_.rules;
  rules.groups = {};
  FLOTILLA_ASSIGN_OR_RETURN(const std::uint64_t removed,
                            look(rules, std::numeric_limits<std::size_t>::max(), leaving_.get_token()));
  if (removed > 0) return ok_status();
  rules.leases = {};
  return look(rules, std::numeric_limits<std::size_t>::max(), leaving_.get_token()).status();
}

}  // namespace flotilla
