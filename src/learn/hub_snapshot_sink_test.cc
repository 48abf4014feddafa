#include "learn/hub_snapshot_sink.h"

#include <gtest/gtest.h>

#include <atomic>
#include <semaphore>

#include "model/test_models.h"
#include "store/fault_store.h"

namespace flotilla {
namespace {

// Uploads of anchors wait until they may go on.
class HubSnapshotSinkTest : public testing::Test {
 protected:
  HubSnapshotSinkTest() {
    auto publisher = Publisher::open(store_, layout_, description_, key_, {.anchor_every = 1}, null_event_sink());
    sink_ = std::make_unique<HubSnapshotSink>(*std::move(publisher), versions_, [this] { finished_.release(); });
  }
  void begin() { sink_->begin(std::make_shared<const GridState>(make_grid(tiny_weights(description_)).value()), 0); }
  Head head() { return head_from_json(as_text(hub_->get(layout_.head()).value().bytes), key_->public_key()).value(); }

  const HubLayout layout_{"owner/run"};
  const ModelDescription description_ = tiny_description();
  const std::shared_ptr<const SigningKey> key_ = SigningKey::generate().value();
  const std::unique_ptr<ObjectStore> hub_ = make_memory_store();
  std::atomic<bool> slow_ = false;
  std::binary_semaphore uploads_{0}, go_on_{0}, finished_{0};
  FaultStore store_{*hub_, {}, 1, [this](const StoreCall& call) {
                      if (slow_ && call.operation.starts_with("put") && call.key.ends_with("/anchor")) {
                        uploads_.release();
                        go_on_.acquire();
                      }
                      return ok_status();
                    }};
  HubVersions versions_{store_, layout_, key_->public_key()};
  std::unique_ptr<HubSnapshotSink> sink_;
};

TEST_F(HubSnapshotSinkTest, WishesReachHeadWhileAVersionIsUploaded) {
  begin();
  finished_.acquire();
  ASSERT_TRUE(sink_->finished()->ok());
  slow_ = true;
  begin();
  uploads_.acquire();
  EXPECT_FALSE(sink_->finished());
  ASSERT_TRUE(sink_->update(RunState::kPaused, 7).ok());
  EXPECT_EQ(head().wanted, 7);
  EXPECT_EQ(head().version, Version(0));
  go_on_.release();
  finished_.acquire();
  const auto done = sink_->finished();
  ASSERT_TRUE(done && done->ok());
  EXPECT_EQ((*done)->version, Version(1));
  EXPECT_EQ(head().version, Version(1));
  EXPECT_EQ(head().wanted, 7);
  EXPECT_EQ(head().state, RunState::kPaused);
  EXPECT_FALSE(sink_->finished()) << "told once";
  EXPECT_EQ(sink_->newest().value()->version, Version(1));
}

TEST_F(HubSnapshotSinkTest, ItsEndWaitsForTheAttemptUnderWay) {
  slow_ = true;
  begin();
  uploads_.acquire();
  go_on_.release();
  sink_.reset();
  EXPECT_EQ(head().version, Version(0));
}

}  // namespace
}  // namespace flotilla
