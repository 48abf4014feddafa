#include "engine/kv_pool.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "engine/address_sanitizer.h"
#include "engine/engine.h"
#include "engine/forward_pass.h"
#include "engine/random_model.h"

namespace flotilla {
namespace {

constexpr std::int64_t kElements = 64;

TEST(KvPool, GivesOutEachBlockOnceAndTheOneReleasedLastFirst) {
  KvPool pool = KvPool::create(3, kElements).value();
  const std::int32_t a = pool.take(), b = pool.take(), c = pool.take();
  EXPECT_THAT((std::vector{a, b, c}), testing::UnorderedElementsAre(0, 1, 2));
  EXPECT_EQ(pool.available(), 0);
  pool.release(b);
  pool.release(a);
  EXPECT_EQ(pool.take(), a);
  EXPECT_EQ(pool.take(), b);
}

TEST(KvPool, ASharedBlockComesBackWithItsLastHolder) {
  KvPool pool = KvPool::create(2, kElements).value();
  const std::int32_t block = pool.take();
  pool.share(block);
  EXPECT_TRUE(pool.shared(block));
  pool.release(block);
  EXPECT_FALSE(pool.shared(block));
  EXPECT_EQ(pool.available(), 1);
  pool.release(block);
  EXPECT_EQ(pool.available(), 2);
}

TEST(KvPool, ACopyHasTheContents) {
  KvPool pool = KvPool::create(2, kElements).value();
  const std::int32_t block = pool.take();
  std::uint16_t* from = pool.data() + block * pool.stride();
  for (std::int64_t i = 0; i < kElements; ++i) from[i] = static_cast<std::uint16_t>(i);
  const std::uint16_t* to = pool.data() + pool.copy(block) * pool.stride();
  EXPECT_NE(from, to);
  EXPECT_TRUE(std::equal(from, from + kElements, to));
}

// A decoder that reads 20 positions of KV, 16 of them in the block `first` of its table.
class PoisonedKv : public testing::Test {
 protected:
  void SetUp() override {
    if (!KvPool::poisons()) GTEST_SKIP() << "this build does not poison: see the presets dev, asan and tsan";
  }

  static ModelDescription sizes() {
    ModelDescription d;
    d.architecture = "llama";
    d.layers = 2;
    d.hidden = 32;
    d.heads = 2;
    d.kv_heads = 1;
    d.head_dim = 16;
    d.ffn = 32;
    d.vocabulary = 40;
    d.context = 64;
    d.norm_epsilon = 1e-5f;
    d.rope_theta = 10000;
    d.tied_embeddings = true;
    return d;
  }

  PoisonedKv() { FLOTILLA_CHECK(weights_.load(source_of(model_.state), threads_).ok()); }

  Status run(std::int32_t begin, std::int32_t end, std::int32_t first, std::int32_t second) {
    const std::int32_t table[] = {first, second};
    std::vector<ForwardRow> rows;
    for (std::int32_t position = begin; position < end; ++position) rows.push_back({position, position, table});
    return pass_->run(rows);
  }

  ThreadPool threads_{1};
  RandomModel model_ = random_model(sizes(), 3).value();
  KernelTable kernels_ = kernels_of(supported_isas().back(), false);
  PackedWeights weights_ = PackedWeights::create(model_.description, kernels_).value();
  KvPool kv_ = KvPool::create(3, 2 * 2 * kBlockTokens * 16).value();
  std::unique_ptr<ForwardPass> pass_ =
      ForwardPass::create(model_.description, kernels_, weights_, kv_, threads_).value();
};

TEST_F(PoisonedKv, ReadingWhatWasNeverWrittenIsAnError) {
  const std::int32_t first = kv_.take(), second = kv_.take();
  const Status status = run(16, 20, first, second);
  EXPECT_EQ(status.code(), StatusCode::kDataLoss) << status.to_string();
  ASSERT_TRUE(run(0, 20, first, second).ok());
  EXPECT_TRUE(run(16, 20, first, second).ok());
}

TEST_F(PoisonedKv, ReadingABlockThatWasReleasedAndTakenByAnotherIsAnError) {
  const std::int32_t first = kv_.take(), second = kv_.take();
  ASSERT_TRUE(run(0, 20, first, second).ok());
  kv_.release(first);
  ASSERT_EQ(kv_.take(), first);
  const Status status = run(16, 20, first, second);
  EXPECT_EQ(status.code(), StatusCode::kDataLoss) << status.to_string();
}

TEST_F(PoisonedKv, ReadingABlockThatNobodyHoldsIsCaught) {
  const std::int32_t first = kv_.take(), second = kv_.take();
  ASSERT_TRUE(run(0, 20, first, second).ok());
  kv_.release(first);
#if defined(FLOTILLA_ADDRESS_SANITIZER)
  EXPECT_DEATH((void)run(16, 20, first, second), "use-after-poison");
#else
  const Status status = run(16, 20, first, second);
  EXPECT_EQ(status.code(), StatusCode::kDataLoss) << status.to_string();
#endif
}

constexpr std::int64_t kPages = 1 << 16;  // elements: whole pages

// Written all over, then released: the last block first.
KvPool used_pool(std::int64_t blocks) {
  KvPool pool = KvPool::create(blocks, kPages).value();
  for (std::int64_t i = 0; i < blocks; ++i) std::fill_n(pool.data() + pool.take() * kPages, kPages, 7);
  for (std::int64_t block = blocks; block-- > 0;) pool.release(static_cast<std::int32_t>(block));
  return pool;
}

// Memory that was given back reads as zeros.
std::int64_t blocks_with_memory(const KvPool& pool) {
  std::int64_t count = 0;
  for (std::int64_t block = 0; block < pool.total(); ++block) {
    count += std::any_of(pool.data() + block * kPages, pool.data() + (block + 1) * kPages,
                         [](std::uint16_t value) { return value != 0; });
  }
  return count;
}

TEST(KvPool, GivesTheMemoryOfFreeBlocksBack) {
  if (KvPool::poisons()) GTEST_SKIP() << "this build keeps the memory, poisoned";
  KvPool pool = used_pool(10);
  EXPECT_EQ(blocks_with_memory(pool), 10);
  pool.give_back(4);
  EXPECT_EQ(blocks_with_memory(pool), 4);
  EXPECT_EQ(pool.data()[3 * kPages], 7) << "those released last are kept";
  EXPECT_EQ(pool.data()[4 * kPages], 0);
  pool.give_back(0);
  EXPECT_EQ(blocks_with_memory(pool), 0);
  pool.give_back(0);
}

TEST(KvPool, KeepsTheMemoryOfBlocksInUse) {
  if (KvPool::poisons()) GTEST_SKIP() << "this build keeps the memory, poisoned";
  KvPool pool = used_pool(10);
  const std::int32_t block = pool.take();
  pool.data()[block * kPages] = 9;
  pool.give_back(0);
  EXPECT_EQ(pool.data()[block * kPages], 9);
  EXPECT_EQ(blocks_with_memory(pool), 1);
}

TEST(KvPool, UsesBlocksThatWereGivenBackAgain) {
  if (KvPool::poisons()) GTEST_SKIP() << "this build keeps the memory, poisoned";
  KvPool pool = used_pool(10);
  pool.give_back(2);
  for (std::int64_t i = 0; i < 10; ++i) std::fill_n(pool.data() + pool.take() * kPages, kPages, 5);
  EXPECT_EQ(pool.available(), 0);
  EXPECT_EQ(blocks_with_memory(pool), 10);
  for (std::int32_t block = 0; block < 10; ++block) pool.release(block);
  pool.give_back(3);
  EXPECT_EQ(blocks_with_memory(pool), 3);
}

}  // namespace
}  // namespace flotilla
