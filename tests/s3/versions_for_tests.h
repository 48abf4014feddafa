#pragma once

#include <gtest/gtest.h>

#include "store/object_store.h"
#include "sync/publisher.h"
#include "sync/state_holder_for_tests.h"
#include "sync/tensors_for_tests.h"
#include "sync/test_model.h"

namespace flotilla {

// Five versions go from a learner to a worker that follows; then a second learner takes the run over.
inline void carry_versions(ObjectStore& learner_hub, ObjectStore& worker_hub) {
  const HubLayout layout{"owner/run"};
  const ModelDescription description = test_description();
  PhiloxStream random{11, 0};
  const auto open_publisher = [&] {
    return Publisher::open(learner_hub, layout, description, test_key(), {3}, null_event_sink()).value();
  };
  const auto publisher = open_publisher();
  StateHolder worker(worker_hub, layout, description);
  EXPECT_EQ(worker.poll().status().code(), StatusCode::kNotFound);
  GridState state = random_state(description, random);
  for (std::uint64_t step = 0; step < 5; ++step) {
    const auto report = publisher->publish(state, step);
    ASSERT_TRUE(report.ok()) << report.status().to_string();
    ASSERT_TRUE(worker.poll().ok());
    const auto pulled = worker.pull();
    ASSERT_TRUE(pulled.ok()) << pulled.status().to_string();
    EXPECT_EQ(*pulled->state, state);
    state = changed_state(description, state, {.integers = 0.01, .vectors = 0.05, .scales = 0.002}, random);
  }
  const auto second = open_publisher();
  ASSERT_TRUE(second->update_head(RunState::kPaused, 1).ok());
  EXPECT_EQ(publisher->publish(state, 9).status().code(), StatusCode::kFailedPrecondition);
}

}  // namespace flotilla
