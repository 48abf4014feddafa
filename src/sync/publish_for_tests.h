#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <string_view>

#include "store/object_store.h"
#include "sync/publisher.h"
#include "sync/state_holder_for_tests.h"
#include "sync/tensors_for_tests.h"
#include "sync/test_model.h"

namespace flotilla {

// A hub in memory, learners that publish a small model to it, and workers that follow.
class PublishTest : public ::testing::Test {
 protected:
  Result<std::unique_ptr<Publisher>> open(ObjectStore& store, std::int64_t anchor_every = 20) {
    return Publisher::open(store, layout_, description_, test_key(), {anchor_every}, null_event_sink());
  }
  std::unique_ptr<Publisher> publisher(std::int64_t anchor_every = 20) { return open(*store_, anchor_every).value(); }
  std::unique_ptr<StateHolder> subscriber(ObjectStore& store) {
    return std::make_unique<StateHolder>(store, layout_, description_);
  }
  std::unique_ptr<StateHolder> subscriber() { return subscriber(*store_); }
  GridState next(const GridState& state) {
    return changed_state(description_, state, {.integers = 0.01, .vectors = 0.05, .scales = 0.002}, random_);
  }
  Result<PulledVersion> pull(StateHolder& subscriber) {
    FLOTILLA_RETURN_IF_ERROR(subscriber.poll().status());
    return subscriber.pull();
  }
  Result<std::string> overwrite(const std::string& key, std::string_view text) {
    FLOTILLA_RETURN_IF_ERROR(store_->put(key, as_bytes(text)).status());
    return key;
  }
  void remove_skip(std::uint64_t version, std::uint64_t base) {
    ASSERT_TRUE(store_->remove(layout_.skip(Version(version), Version(base))).ok());
  }
  // Flips one bit of an object on the hub.
  void damage(const std::string& key) {
    Bytes bytes = store_->get(key)->bytes;
    bytes[bytes.size() / 2] ^= 4;
    ASSERT_TRUE(store_->put(key, bytes).ok());
  }

  const HubLayout layout_{"owner/run"};
  const ModelDescription description_ = test_description();
  const std::unique_ptr<ObjectStore> store_ = make_memory_store();
  PhiloxStream random_{11, 0};
};

inline ModelDescription one_matrix(std::int64_t rows, std::int64_t cols) {
  return description_of({{"matrix", TensorKind::kMatrix, rows, cols}});
}

}  // namespace flotilla
