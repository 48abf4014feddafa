#include "rollout/sweep.h"

#include <gtest/gtest.h>

#include <map>

#include "rollout/watched_engine_for_tests.h"

namespace flotilla {
namespace {

const SweepSettings kSettings{.seed = 42, .sampling = {}, .version = Version(3), .state = sha256("three")};

using Groups = std::map<std::size_t, FinishedGroup>;

struct Outcome {
  Groups groups;
  SweepReport report;
};

Outcome sweep(Engine& engine, const Toy& toy, std::span<const SweepItem> items,
              const SweepSettings& settings = kSettings, const std::function<std::int64_t()>& between_calls = nullptr) {
  Outcome outcome;
  const auto keep = [&](FinishedGroup group) {
    outcome.groups.emplace(group.item, std::move(group));
    return ok_status();
  };
  const auto report = run_sweep(engine, toy.rules, settings, items, {.on_group = keep, .between_calls = between_calls});
  EXPECT_TRUE(report.ok()) << report.status().to_string();
  if (report.ok()) outcome.report = *report;
  EXPECT_EQ(engine.usage().sequences, 0);
  EXPECT_EQ(engine.usage().blocks_used, 0);
  return outcome;
}

void expect_same(const Groups& a, const Groups& b) {
  ASSERT_EQ(a.size(), b.size());
  for (const auto& [item, group] : a) {
    ASSERT_EQ(group.episodes.size(), b.at(item).episodes.size());
    for (std::size_t e = 0; e < group.episodes.size(); ++e) {
      EXPECT_TRUE(same_episode(group.episodes[e], b.at(item).episodes[e])) << "group " << item << " episode " << e;
    }
  }
}

// One episode by itself, without forks, chunks or a batch: every token is read from a pass over all tokens before it.
Episode plain_episode(const Toy& toy, const SweepItem& item, std::uint32_t index) {
  const auto engine = toy_engine();
  const auto prompt = episode_prompt(*toy.tokenizer, item.task).value();
  EpisodeBuilder builder(toy.rules, item.task, environment_seed(kSettings.seed, item.sample_group, index), prompt);
  while (!builder.ended()) {
    const SequenceId sequence = engine->open().value();
    const std::vector<TokenId> tokens = builder.episode().tokens;
    const auto size = static_cast<std::uint32_t>(tokens.size());
    const Readout readout{.offset = static_cast<std::int32_t>(size) - 1,
                          .sampling = kSettings.sampling,
                          .key = {kSettings.seed, item.sample_group, index, size},
                          .target = std::nullopt};
    const Chunk chunk{sequence, tokens, {&readout, 1}};
    const auto result = engine->forward({&chunk, 1}).value();
    engine->close(sequence);
    EXPECT_TRUE(builder.take(result[0].token, result[0].logprob).ok());
  }
  Episode episode = std::move(builder).finish();
  episode.spans = {{static_cast<std::int32_t>(prompt.size()), static_cast<std::int32_t>(episode.tokens.size()),
                    kSettings.version, kSettings.state}};
  return episode;
}

TEST(Sweep, GivesWhatEachEpisodeGivesAlone) {
  Toy toy;
  const auto engine = toy_engine();
  const auto items = toy.items(5, 4);
  const Outcome outcome = sweep(*engine, toy, items);
  ASSERT_EQ(outcome.groups.size(), 5u);
  std::map<EpisodeEnd, int> ends;
  for (const auto& [item, group] : outcome.groups) {
    for (std::uint32_t e = 0; e < 4; ++e) {
      EXPECT_TRUE(same_episode(group.episodes[e], plain_episode(toy, items[item], e))) << item << " " << e;
      ++ends[group.episodes[e].end];
    }
  }
  EXPECT_GT(ends[EpisodeEnd::kDone], 0);
  EXPECT_GT(ends[EpisodeEnd::kTurnLimit] + ends[EpisodeEnd::kTokenLimit], 0);
}

TEST(Sweep, MakesGroupsThatPassTheCheck) {
  Toy toy;
  const auto engine = toy_engine();
  for (auto& [item, finished] : sweep(*engine, toy, toy.items(4, 3)).groups) {
    Group group;
    group.identity.run = "owner/run";
    group.identity.operator_id = OperatorId("o");
    group.identity.worker = WorkerId("w");
    group.identity.backend = "cpu";
    group.identity.group = group_id(group.identity);
    group.prompt_tokens = finished.prompt_tokens;
    group.episodes = finished.episodes;
    const Status status = check_group(group);
    EXPECT_TRUE(status.ok()) << status.to_string();
  }
}

TEST(Sweep, DoesNotDependOnTheRowsOfACall) {
  Toy toy;
  const auto engine = toy_engine();
  const auto items = toy.items(4, 3);
  const Outcome reference = sweep(*engine, toy, items);
  for (const std::int32_t rows : {1, 3, 7, 1000}) {
    SweepSettings settings = kSettings;
    settings.rows_per_call = rows;
    expect_same(sweep(*engine, toy, items, settings).groups, reference.groups);
  }
}

TEST(Sweep, DoesNotDependOnTheSizeOfTheKvPool) {
  Toy toy;
  const auto items = toy.items(6, 4);
  const Outcome reference = sweep(*toy_engine(), toy, items);
  EXPECT_EQ(reference.report.evictions, 0);
  std::int64_t evictions = 0;
  for (const std::int64_t blocks : {9, 10, 11, 13, 17, 25, 40}) {
    const Outcome outcome = sweep(*toy_engine(blocks), toy, items);
    expect_same(outcome.groups, reference.groups);
    evictions += outcome.report.evictions;
  }
  EXPECT_GT(evictions, 0);
}

TEST(Sweep, FitsIntoTheBlocksThatItSaysItNeeds) {
  Toy toy;
  const auto items = toy.items(4, 3);
  std::int32_t longest = 0;
  for (const SweepItem& item : items) {
    longest = std::max(longest, static_cast<std::int32_t>(episode_prompt(*toy.tokenizer, item.task)->size()));
  }
  EXPECT_EQ(sweep(*toy_engine(sweep_blocks_max(toy.rules, longest, 4, 3)), toy, items).report.evictions, 0);
  EXPECT_EQ(sweep(*toy_engine(sweep_blocks_min(toy.rules, longest)), toy, items).groups.size(), 4u);
}

TEST(Sweep, ComputesEachTokenOnce) {
  Toy toy;
  const auto engine = toy_engine();
  const Outcome outcome = sweep(*engine, toy, toy.items(5, 4));
  std::int64_t expected = 0;
  for (const auto& [item, group] : outcome.groups) {
    expected += group.prompt_tokens - 1;
    // The prompt's last token is each episode's own, and the last token of all is never read from.
    for (const Episode& e : group.episodes) expected += std::ssize(e.tokens) - group.prompt_tokens;
  }
  EXPECT_EQ(engine->usage().tokens_computed, expected);
}

TEST(Sweep, ComputesWhatAllPromptsBeginWithOnce) {
  Toy toy;
  toy.environment.system_ = std::string(40, 'a');
  const auto items = toy.items(5, 4);
  Groups alone;
  std::int64_t tokens = 0;
  for (std::size_t i = 0; i < items.size(); ++i) {
    const auto engine = toy_engine();
    alone[i] = sweep(*engine, toy, std::span(&items[i], 1)).groups.at(0);
    tokens += engine->usage().tokens_computed;
  }
  const auto engine = toy_engine();
  const Outcome outcome = sweep(*engine, toy, items);
  expect_same(outcome.groups, alone);
  const std::int64_t saved = tokens - engine->usage().tokens_computed;
  EXPECT_GE(saved, 4 * 32) << "whole blocks of the 40 equal tokens, in all groups but one";
  EXPECT_EQ(saved % (4 * kBlockTokens), 0);
  std::int64_t prompts = 0;
  for (const auto& [item, group] : alone) prompts += group.prompt_tokens;
  EXPECT_EQ(outcome.report.prompt_tokens, prompts - saved);
  std::int64_t evictions = 0;
  for (const std::int64_t blocks : {9, 10, 12, 15, 20, 30}) {
    const Outcome tight = sweep(*toy_engine(blocks), toy, items);
    expect_same(tight.groups, alone);
    evictions += tight.report.evictions;
  }
  EXPECT_GT(evictions, 0);
}

TEST(Sweep, OfGroupsOfOnePromptHasTheWholePromptAsTrunk) {
  Toy toy;
  auto items = toy.items(1, 3);
  const auto length = static_cast<int>(episode_prompt(*toy.tokenizer, items[0].task)->size());
  // A prompt without its last token fills whole blocks.
  toy.environment.system_ += std::string((2 * kBlockTokens - length % kBlockTokens + 1) % kBlockTokens, 'a');
  items = toy.items(1, 3);
  items.push_back(items[0]);
  items[1].sample_group = 7;
  Groups alone;
  for (std::size_t i = 0; i < 2; ++i) alone[i] = sweep(*toy_engine(), toy, std::span(&items[i], 1)).groups.at(0);
  for (const std::int64_t blocks : {9, 12, 20, 1000}) expect_same(sweep(*toy_engine(blocks), toy, items).groups, alone);
}

TEST(Sweep, GivesTheSameWithoutSharedPrefixes) {
  Toy toy;
  toy.environment.system_ = std::string(40, 'a');
  const auto items = toy.items(5, 4);
  const Outcome shared = sweep(*toy_engine(), toy, items);
  SweepSettings settings = kSettings;
  settings.share_prefixes = false;
  std::int32_t longest = 0;
  std::int64_t prompts = 0;
  for (const auto& [item, group] : shared.groups) {
    longest = std::max(longest, group.prompt_tokens);
    prompts += group.prompt_tokens;
  }
  std::int64_t evictions = 0;
  for (const std::int64_t blocks : {9, 12, 20, 1000}) {
    const auto engine = toy_engine(blocks);
    const Outcome outcome = sweep(*engine, toy, items, settings);
    expect_same(outcome.groups, shared.groups);
    EXPECT_EQ(outcome.report.prompt_tokens, 4 * prompts);
    EXPECT_GE(engine->usage().tokens_computed, 4 * (prompts - 5));
    evictions += outcome.report.evictions;
  }
  EXPECT_GT(evictions, 0);
  const std::int64_t most = sweep_blocks_max(toy.rules, longest, 5, 4, false);
  EXPECT_EQ(sweep(*toy_engine(most), toy, items, settings).report.evictions, 0);
}

TEST(Sweep, GoesOnWithFewerGroupsWhenTold) {
  Toy toy;
  const auto items = toy.items(6, 3);
  const Outcome reference = sweep(*toy_engine(), toy, items);
  for (const bool share : {true, false}) {
    WatchedEngine engine;
    SweepSettings settings = kSettings;
    settings.share_prefixes = share;
    std::int64_t most = 0;
    const auto between_calls = [&] { return most = std::int64_t{1} << (engine.calls.size() / 5 % 3); };
    engine.before_forward = [&](std::span<const Chunk>) {
      // Episodes, and the prompts and the trunk that they share.
      EXPECT_LE(engine.usage().sequences, most * 3 + (share ? most + 1 : 0));
      return ok_status();
    };
    const Outcome outcome = sweep(engine, toy, items, settings, between_calls);
    expect_same(outcome.groups, reference.groups);
    EXPECT_GT(outcome.report.evictions, 0);
  }
}

TEST(Sweep, KeepsOneGroupInFlightAtLeast) {
  Toy toy;
  const auto items = toy.items(3, 2);
  const Outcome outcome = sweep(*toy_engine(), toy, items, kSettings, [] { return 0; });
  expect_same(outcome.groups, sweep(*toy_engine(), toy, items).groups);
}

TEST(Sweep, CountsWhatItDid) {
  Toy toy;
  const auto engine = toy_engine();
  const Outcome outcome = sweep(*engine, toy, toy.items(3, 2));
  EXPECT_EQ(outcome.report.groups, 3);
  EXPECT_EQ(outcome.report.episodes, 6);
  std::int64_t tokens = 0;
  std::int64_t prompts = 0;
  for (const auto& [item, group] : outcome.groups) {
    prompts += group.prompt_tokens;
    for (const Episode& e : group.episodes) tokens += std::ssize(e.tokens) - group.prompt_tokens;
  }
  EXPECT_EQ(outcome.report.prompt_tokens, prompts);
  EXPECT_EQ(outcome.report.model_tokens + outcome.report.environment_tokens, tokens);
}

TEST(Sweep, AppendsObservationsInTheSameCallsAsTheOthersDecode) {
  Toy toy;
  WatchedEngine engine;
  sweep(engine, toy, toy.items(4, 4));
  bool together = false;
  for (std::size_t call = 1; call < engine.calls.size(); ++call) {
    const auto& sizes = engine.calls[call];
    together |=
        std::ranges::count_if(sizes, [](std::size_t n) { return n > 1; }) > 0 && std::ranges::count(sizes, 1u) > 3;
  }
  EXPECT_TRUE(together);
  EXPECT_LT(engine.calls.back().size(), engine.calls[1].size());
}

TEST(Sweep, ShipsAGroupWhileOthersGoOn) {
  Toy toy;
  const auto engine = toy_engine();
  std::vector<std::int64_t> open_at_shipping;
  const auto items = toy.items(5, 2);
  const auto note = [&](FinishedGroup) {
    open_at_shipping.push_back(engine->usage().sequences);
    return ok_status();
  };
  ASSERT_TRUE(run_sweep(*engine, toy.rules, kSettings, items, {.on_group = note}).ok());
  ASSERT_EQ(open_at_shipping.size(), 5u);
  EXPECT_GT(open_at_shipping.front(), 0);
  EXPECT_EQ(open_at_shipping.back(), 0);
}

TEST(Sweep, StopsBetweenCallsAndClosesItsSequences) {
  Toy toy;
  WatchedEngine engine;
  std::stop_source stop;
  engine.before_forward = [&](std::span<const Chunk>) {
    if (engine.calls.size() == 3) stop.request_stop();
    return ok_status();
  };
  const auto items = toy.items(4, 4);
  const auto report = run_sweep(engine, toy.rules, kSettings, items,
                                {.on_group = [](const FinishedGroup&) { return ok_status(); }}, stop.get_token());
  EXPECT_EQ(report.status().code(), StatusCode::kCancelled);
  EXPECT_EQ(engine.calls.size(), 4u);
  EXPECT_EQ(engine.usage().sequences, 0);
  EXPECT_EQ(engine.usage().blocks_used, 0);
}

TEST(Sweep, PassesOnErrorsAndClosesItsSequences) {
  Toy toy;
  WatchedEngine engine;
  const auto items = toy.items(4, 2);
  const auto fine = [](FinishedGroup) { return ok_status(); };
  const auto refuse = [](FinishedGroup) { return unavailable("no"); };
  EXPECT_EQ(run_sweep(engine, toy.rules, kSettings, items, {.on_group = refuse}).status().code(),
            StatusCode::kUnavailable);
  EXPECT_EQ(engine.usage().sequences, 0);

  engine.before_forward = [](std::span<const Chunk>) { return data_loss("layer 3: NaN"); };
  EXPECT_EQ(run_sweep(engine, toy.rules, kSettings, items, {.on_group = fine}).status().message(), "layer 3: NaN");
  EXPECT_EQ(engine.usage().sequences, 0);

  engine.before_forward = [](std::span<const Chunk>) { return ok_status(); };
  toy.environment.broken_ = true;
  EXPECT_EQ(run_sweep(engine, toy.rules, kSettings, items, {.on_group = fine}).status().code(), StatusCode::kInternal);
  EXPECT_EQ(engine.usage().sequences, 0);
}

TEST(Sweep, SaysWhenThePoolCannotHoldOneEpisode) {
  Toy toy;
  const auto engine = toy_engine(2);
  const auto items = toy.items(2, 2, 36);
  const auto report =
      run_sweep(*engine, toy.rules, kSettings, items, {.on_group = [](const FinishedGroup&) { return ok_status(); }});
  EXPECT_EQ(report.status().code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(engine->usage().sequences, 0);
}

TEST(Sweep, RefusesWhatCannotBeDecoded) {
  Toy toy;
  const auto engine = toy_engine();
  const auto fine = [](FinishedGroup) { return ok_status(); };
  auto items = toy.items(1, 0);
  EXPECT_EQ(run_sweep(*engine, toy.rules, kSettings, items, {.on_group = fine}).status().code(),
            StatusCode::kInvalidArgument);
  items = toy.items(1, 1);
  items[0].task.question = std::string(200, 'a');
  EXPECT_EQ(run_sweep(*engine, toy.rules, kSettings, items, {.on_group = fine}).status().code(),
            StatusCode::kInvalidArgument);
  SweepSettings settings = kSettings;
  settings.rows_per_call = 0;
  EXPECT_EQ(run_sweep(*engine, toy.rules, settings, toy.items(1, 1), {.on_group = fine}).status().code(),
            StatusCode::kInvalidArgument);
}

TEST(Sweep, OfNothingIsNothing) {
  Toy toy;
  EXPECT_EQ(sweep(*toy_engine(), toy, {}).report.groups, 0);
}

}  // namespace
}  // namespace flotilla
