#pragma once

#include <memory>

#include "learn/hub_rollout_source.h"
#include "learn/rollout_source.h"

namespace flotilla {

// Publishes to the hub.
class HubSnapshotSink final : public SnapshotSink {
 public:
  // The versions outlive the sink.
  HubSnapshotSink(std::unique_ptr<Publisher> publisher, HubVersions& versions)
      : publisher_(std::move(publisher)), versions_(versions) {}

  Result<PublishReport> publish(const GridState& state, std::uint64_t optimizer_step) override {
    return publisher_->publish(state, optimizer_step);
  }
  Status update(RunState state, std::int64_t wanted) override { return publisher_->update_head(state, wanted); }
  Result<std::optional<SnapshotVersion>> newest() override {
    const std::optional<Head> head = publisher_->head();
    if (!head) return std::optional<SnapshotVersion>();
    FLOTILLA_ASSIGN_OR_RETURN(const Sha256Digest state, versions_.state_of(head->version));
    return std::optional(SnapshotVersion{head->version, state, head->generation});
  }

 private:
  std::unique_ptr<Publisher> publisher_;
  HubVersions& versions_;
};

}  // namespace flotilla
