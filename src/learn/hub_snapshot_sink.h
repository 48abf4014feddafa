#pragma once

#include <functional>
#include <future>
#include <memory>
#include <thread>

#include "learn/hub_rollout_source.h"
#include "learn/rollout_source.h"

namespace flotilla {

// Publishes to the hub, each version on a thread of its own. While the hub is `crowded`, the fleet is asked for no
// groups.
class HubSnapshotSink final : public SnapshotSink {
 public:
  // `on_finished` is called by that thread when finished() has something to tell. The versions outlive the sink, whose
  // end waits for the attempt under way.
  HubSnapshotSink(
      std::unique_ptr<Publisher> publisher, HubVersions& versions, std::function<void()> on_finished,
      std::function<bool()> crowded = [] { return false; })
      : publisher_(std::move(publisher)),
        versions_(versions),
        on_finished_(std::move(on_finished)),
        crowded_(std::move(crowded)) {}

  void begin(std::shared_ptr<const GridState> state, std::uint64_t optimizer_step) override {
    FLOTILLA_CHECK(!attempt_.valid());
    std::promise<Result<PublishReport>> promise;
    attempt_ = promise.get_future();
    thread_ = std::jthread([this, promise = std::move(promise), state = std::move(state), optimizer_step]() mutable {
      promise.set_value(publisher_->publish(std::move(state), optimizer_step));
      on_finished_();
    });
  }
  std::optional<Result<PublishReport>> finished() override {
    if (!attempt_.valid() || attempt_.wait_for(std::chrono::seconds(0)) != std::future_status::ready) {
      return std::nullopt;
    }
    return attempt_.get();
  }
  Status update(RunState state, std::int64_t wanted) override {
    return publisher_->update_head(state, crowded_() ? 0 : wanted);
  }
  Result<std::optional<SnapshotVersion>> newest() override {
    const std::optional<Head> head = publisher_->head();
    if (!head) return std::optional<SnapshotVersion>();
    FLOTILLA_ASSIGN_OR_RETURN(const Sha256Digest state, versions_.state_of(head->version));
    return std::optional(SnapshotVersion{head->version, state, head->generation});
  }

 private:
  const std::unique_ptr<Publisher> publisher_;
  HubVersions& versions_;
  const std::function<void()> on_finished_;
  const std::function<bool()> crowded_;
  std::future<Result<PublishReport>> attempt_;
  std::jthread thread_;  // last: it uses all of the above
};

}  // namespace flotilla
