#pragma once

#include <memory>
#include <optional>
#include <utility>

#include "sync/subscriber.h"
#include "sync/test_model.h"

namespace flotilla {

// What a worker is to its subscriber: holds what was pulled, here as a whole state.
class StateHolder {
 public:
  StateHolder(ObjectStore& store, HubLayout layout, ModelDescription description)
      : subscriber_(Subscriber::create(store, std::move(layout), std::move(description), test_key()->public_key(),
                                       null_event_sink(), {.threads = 2, .held = [this](TensorIndex i) {
                                                             return held_->state->tensors[static_cast<std::size_t>(i)];
                                                           }})) {}
  StateHolder(const StateHolder&) = delete;
  StateHolder& operator=(const StateHolder&) = delete;

  Result<Head> poll() { return subscriber_->poll(); }
  Result<PulledVersion> fetch(Version version) { return subscriber_->fetch(version); }
  Result<PulledVersion> pull() {
    FLOTILLA_ASSIGN_OR_RETURN(const std::optional<NextVersion> next, subscriber_->pull());
    if (!next) return *held_;
    auto state = std::make_shared<GridState>();
    FLOTILLA_RETURN_IF_ERROR(
        next->weights([&](TensorIndex, const GridTensor& tensor) { state->tensors.push_back(tensor); }));
    held_ = {next->version, next->state_digest, std::move(state), next->bytes, next->path};
    subscriber_->hold();
    return *held_;
  }
  const std::optional<PulledVersion>& held() const { return held_; }
  Subscriber& subscriber() { return *subscriber_; }

 private:
  std::optional<PulledVersion> held_;
  std::unique_ptr<Subscriber> subscriber_;
};

}  // namespace flotilla
