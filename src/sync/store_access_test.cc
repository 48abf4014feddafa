// Single objects of a hub: large ones in parts, damaged ones, artifacts.
#include "sync/store_access.h"

#include <gtest/gtest.h>

#include <stop_token>

#include "base/hashing.h"
#include "store/fault_store.h"
#include "sync/hub_layout.h"
#include "sync/manifest.h"
#include "sync/subscriber.h"

namespace flotilla {
namespace {

class StoreAccessTest : public ::testing::Test {
 protected:
  const HubLayout layout_{"owner/run"};
  const std::unique_ptr<ObjectStore> store_ = make_memory_store();
};

TEST_F(StoreAccessTest, ALargeObjectIsReadInPartsUntilAStop) {
  Bytes large(2 * kPartBytes + 5);
  for (std::size_t i = 0; i < large.size(); ++i) large[i] = static_cast<std::uint8_t>(i * i >> 7);
  ASSERT_TRUE(store_->put("large", large).ok());
  const StoredObject object = describe_object(large);
  std::uint64_t fetched = 0;
  EXPECT_EQ(fetch_described(*store_, "large", object, fetched).value(), large);
  EXPECT_EQ(fetched, large.size());

  std::stop_source stop;
  int reads = 0;
  FaultStore stopping(*store_, {}, 1, [&](const StoreCall&) {
    ++reads;
    stop.request_stop();
    return ok_status();
  });
  const auto stopped = fetch_described(stopping, "large", object, fetched, 1, stop.get_token());
  EXPECT_EQ(stopped.status().code(), StatusCode::kCancelled);
  EXPECT_EQ(reads, 1);

  for (const std::size_t size : {large.size() + 1, large.size() - 1, std::size_t{kPartBytes}}) {
    Bytes other = large;
    other.resize(size);
    ASSERT_TRUE(store_->put("large", other).ok());
    EXPECT_EQ(fetch_described(*store_, "large", object, fetched).status().code(), StatusCode::kDataLoss) << size;
  }
}

TEST_F(StoreAccessTest, AChunkIsNotFetchedAgainAfterAStop) {
  const Bytes good(3 * kChunkBytes, 7);
  Bytes bad = good;
  bad[5] ^= 1, bad[2 * kChunkBytes] ^= 1;
  ASSERT_TRUE(store_->put("large", bad).ok());
  std::stop_source stop;
  int reads = 0;
  FaultStore stopping(*store_, {}, 1, [&](const StoreCall&) {
    if (++reads == 2) {
      stop.request_stop();
      EXPECT_TRUE(store_->put("large", good).ok());
    }
    return ok_status();
  });
  std::uint64_t fetched = 0;
  const auto stopped = fetch_described(stopping, "large", describe_object(good), fetched, 1, stop.get_token());
  EXPECT_EQ(stopped.status().code(), StatusCode::kCancelled);
  EXPECT_EQ(reads, 2) << "the whole and the first bad chunk";
}

TEST_F(StoreAccessTest, AnObjectThatBecomesShorterBetweenTwoPartsIsDataLoss) {
  const Bytes large(2 * kPartBytes, 7);
  ASSERT_TRUE(store_->put("large", large).ok());
  int reads = 0;
  FaultStore shrinking(*store_, {}, 1, [&](const StoreCall&) {
    return ++reads == 2 ? store_->put("large", Bytes(kPartBytes / 2, 7)).status() : ok_status();
  });
  std::uint64_t fetched = 0;
  const auto found = fetch_described(shrinking, "large", describe_object(large), fetched);
  EXPECT_EQ(found.status().code(), StatusCode::kDataLoss) << found.status().to_string();
}

TEST_F(StoreAccessTest, ALargeObjectTakesTheMemoryThatItNeeds) {
  const Bytes large((32 << 20) + kPartBytes + 5, 7);
  ASSERT_TRUE(store_->put("large", large).ok());
  std::uint64_t fetched = 0;
  const auto found = fetch_described(*store_, "large", describe_object(large), fetched);
  ASSERT_TRUE(found.ok()) << found.status().to_string();
  EXPECT_EQ(found->capacity(), large.size() + 1);
}

TEST_F(StoreAccessTest, ArtifactsAreFoundByTheirContent) {
  const auto digest = put_artifact(*store_, layout_, as_bytes("tokenizer"));
  ASSERT_TRUE(digest.ok());
  EXPECT_EQ(*digest, sha256("tokenizer"));
  EXPECT_EQ(*put_artifact(*store_, layout_, as_bytes("tokenizer")), *digest);
  EXPECT_EQ(as_text(get_artifact(*store_, layout_, *digest).value()), "tokenizer");
  EXPECT_EQ(get_artifact(*store_, layout_, sha256("other")).status().code(), StatusCode::kNotFound);
  ASSERT_TRUE(store_->put(layout_.artifact(*digest), as_bytes("tokenizes")).ok());
  EXPECT_EQ(get_artifact(*store_, layout_, *digest).status().code(), StatusCode::kDataLoss);
  EXPECT_TRUE(put_artifact(*store_, layout_, as_bytes("tokenizer")).ok());  // repairs it
  EXPECT_EQ(as_text(get_artifact(*store_, layout_, *digest).value()), "tokenizer");
}

}  // namespace
}  // namespace flotilla
