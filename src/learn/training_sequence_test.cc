#include "learn/training_sequence.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "rollout/group_for_tests.h"

namespace flotilla {
namespace {

using ::testing::ElementsAre;

std::vector<std::int32_t> rows_of(const TrainingSequence& sequence) {
  std::vector<std::int32_t> rows;
  for (const TrainingTarget& target : sequence.targets) rows.push_back(target.row);
  return rows;
}

std::vector<TokenId> targets_of(const TrainingSequence& sequence) {
  std::vector<TokenId> tokens;
  for (const TrainingTarget& target : sequence.targets) tokens.push_back(target.token);
  return tokens;
}

const std::vector<float> kAdvantages{0.5f, -0.5f};

TEST(PackGroup, SharesThePromptAndTrainsOnModelTokensOnly) {
  const auto sequences = pack_group(make_test_group(), kAdvantages, {});
  ASSERT_EQ(sequences.size(), 1u);
  const TrainingSequence& sequence = sequences[0];
  EXPECT_THAT(sequence.tokens, ElementsAre(1, 2, 3, 40, 41, 50, 51, 52, 44, 45));
  EXPECT_EQ(sequence.prompt, 3);
  EXPECT_THAT(sequence.branch_ends, ElementsAre(8, 10));
  EXPECT_THAT(rows_of(sequence), ElementsAre(2, 2, 3, 7, 8, 9));
  EXPECT_THAT(targets_of(sequence), ElementsAre(40, 44, 41, 42, 45, 46));
  EXPECT_EQ(sequence.targets[0].worker_logprob, -0.25f);
  EXPECT_EQ(sequence.targets[0].advantage, 0.5f);
  EXPECT_EQ(sequence.targets[1].worker_logprob, -3.0f);
  EXPECT_EQ(sequence.targets[1].advantage, -0.5f);
}

TEST(PackGroup, WithoutSharingMakesASequenceAnEpisode) {
  const auto sequences = pack_group(make_test_group(), kAdvantages, {.share_prompt = false});
  ASSERT_EQ(sequences.size(), 2u);
  EXPECT_THAT(sequences[0].tokens, ElementsAre(1, 2, 3, 40, 41, 50, 51, 52));
  EXPECT_THAT(sequences[1].tokens, ElementsAre(1, 2, 3, 44, 45));
  EXPECT_THAT(rows_of(sequences[1]), ElementsAre(2, 3, 4));
}

TEST(PackGroup, SplitsAGroupThatIsTooLongAndRepeatsItsPrompt) {
  const auto sequences = pack_group(make_test_group(), kAdvantages, {.max_tokens = 9});
  ASSERT_EQ(sequences.size(), 2u);
  EXPECT_EQ(sequences[1].prompt, 3);
  EXPECT_THAT(sequences[1].tokens, ElementsAre(1, 2, 3, 44, 45));
}

// A prompt, what follows it, and a target after each of its last `targets` tokens.
TrainingSequence one_branch(std::vector<TokenId> prompt, const std::vector<TokenId>& rest, std::int32_t targets) {
  TrainingSequence sequence;
  sequence.prompt = static_cast<std::int32_t>(prompt.size());
  sequence.tokens = std::move(prompt);
  sequence.tokens.insert(sequence.tokens.end(), rest.begin(), rest.end());
  if (!rest.empty()) sequence.branch_ends = {sequence.size()};
  for (std::int32_t row = sequence.size() - targets; row < sequence.size(); ++row) {
    sequence.targets.push_back({row, 100 + row, 0, 1});
  }
  return sequence;
}

TEST(ShareBeginnings, ComputesWhatAllPromptsBeginWithOnce) {
  const std::vector<TrainingSequence> sequences{one_branch({1, 2, 3}, {4, 5}, 2), one_branch({1, 2, 6, 7}, {8}, 2)};
  const auto joined = share_beginnings(sequences, 100);
  ASSERT_EQ(joined.size(), 1u);
  EXPECT_EQ(joined[0].prompt, 2);
  EXPECT_THAT(joined[0].tokens, ElementsAre(1, 2, 3, 4, 5, 6, 7, 8));
  EXPECT_THAT(joined[0].branch_ends, ElementsAre(5, 8));
  EXPECT_THAT(rows_of(joined[0]), ElementsAre(3, 4, 6, 7));
  EXPECT_THAT(targets_of(joined[0]), ElementsAre(103, 104, 103, 104));
}

TEST(ShareBeginnings, OfEqualPromptsIsWhatAGroupIs) {
  const std::vector<TrainingSequence> sequences{one_branch({1, 2}, {4}, 2), one_branch({1, 2}, {}, 1),
                                                one_branch({1, 2}, {5, 6}, 3)};
  const auto joined = share_beginnings(sequences, 100);
  ASSERT_EQ(joined.size(), 1u);
  EXPECT_THAT(joined[0].tokens, ElementsAre(1, 2, 4, 5, 6));
  EXPECT_THAT(joined[0].branch_ends, ElementsAre(3, 5));
  EXPECT_THAT(rows_of(joined[0]), ElementsAre(1, 1, 1, 2, 3, 4));
}

TEST(ShareBeginnings, StaysWithinTheTokensAllowed) {
  const std::vector<TrainingSequence> sequences{one_branch({1, 2, 3}, {4}, 1), one_branch({1, 2, 3}, {5}, 1),
                                                one_branch({9}, {5, 6, 7, 8, 9, 10}, 1), one_branch({8}, {7}, 1)};
  const auto joined = share_beginnings(sequences, 6);
  ASSERT_EQ(joined.size(), 3u);
  EXPECT_THAT(joined[0].tokens, ElementsAre(1, 2, 3, 4, 5));
  EXPECT_EQ(joined[1].tokens, sequences[2].tokens);
  EXPECT_EQ(joined[2].tokens, sequences[3].tokens);
}

TEST(ShareBeginnings, DoesNotJoinWhereTheOthersWouldShareLess) {
  const std::vector<TrainingSequence> sequences{one_branch({1, 2, 3}, {4}, 1), one_branch({1, 2, 3}, {5}, 1),
                                                one_branch({1, 6, 7}, {8}, 1), one_branch({9}, {10}, 1)};
  const auto joined = share_beginnings(sequences, 100);
  ASSERT_EQ(joined.size(), 3u);
  EXPECT_THAT(joined[0].tokens, ElementsAre(1, 2, 3, 4, 5));
  EXPECT_EQ(joined[1].tokens, sequences[2].tokens);
  EXPECT_EQ(joined[2].tokens, sequences[3].tokens);
}

TEST(PackGroup, KeepsAnEpisodeThatAloneIsTooLong) {
  EXPECT_EQ(pack_group(make_test_group(), kAdvantages, {.max_tokens = 4}).size(), 2u);
}

TEST(PackGroup, LeavesOutTruncatedEpisodesWhenTheyAreMasked) {
  const auto sequences = pack_group(make_test_group(), kAdvantages, {.mask_truncated = true});
  ASSERT_EQ(sequences.size(), 1u);
  EXPECT_THAT(targets_of(sequences[0]), ElementsAre(40, 41, 42));
}

TEST(PackGroup, LeavesOutEpisodesWithoutSignalOnlyWhenAsked) {
  const std::vector<float> none{0, 0};
  EXPECT_TRUE(pack_group(make_test_group(), none, {.skip_without_signal = true}).empty());
  EXPECT_EQ(pack_group(make_test_group(), none, {}).size(), 1u);
}

TEST(PackGroup, AnEpisodeOfOneModelTokenIsTheLastWordOfThePrompt) {
  Group group = make_test_group();
  group.episodes.resize(1);
  group.episodes[0].tokens.resize(4);
  group.episodes[0].sources.resize(4);
  const auto sequences = pack_group(group, std::vector<float>{1.0f}, {});
  ASSERT_EQ(sequences.size(), 1u);
  EXPECT_THAT(sequences[0].tokens, ElementsAre(1, 2, 3));
  EXPECT_THAT(sequences[0].branch_ends, ElementsAre(3));
  EXPECT_THAT(rows_of(sequences[0]), ElementsAre(2));
}

TEST(MicroBatches, NeverExceedTheLimitUnlessOneSequenceDoes) {
  std::vector<TrainingSequence> sequences(5);
  const int sizes[] = {4, 5, 20, 3, 3};
  for (int i = 0; i < 5; ++i) sequences[i].tokens.resize(sizes[i]);
  std::vector<std::pair<std::size_t, std::size_t>> ranges;
  for (const MicroBatch& batch : micro_batches(sequences, 10)) ranges.emplace_back(batch.begin, batch.end);
  EXPECT_THAT(ranges, ElementsAre(std::pair(0u, 2u), std::pair(2u, 3u), std::pair(3u, 5u)));
  EXPECT_TRUE(micro_batches({}, 10).empty());
}

}  // namespace
}  // namespace flotilla
