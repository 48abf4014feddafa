// Weights that change under running episodes.
#include <gtest/gtest.h>

#include <map>

#include "rollout/sweep.h"
#include "rollout/toy_for_tests.h"

namespace flotilla {
namespace {

const PulledVersion& version(Version number) {
  static std::map<Version, PulledVersion> versions;
  const auto found = versions.find(number);
  return found != versions.end() ? found->second : versions.emplace(number, toy_version(number.value())).first->second;
}

struct Plan {
  std::vector<int> swaps;  // before which looks (a forward call each) the next version comes
  KvAfterSwap kv = KvAfterSwap::kRecompute;
  std::int32_t rows_per_call = 64;
  std::int64_t kv_blocks = 1000;
  int threads = 1;
};

struct Outcome {
  std::map<std::size_t, FinishedGroup> groups;
  SweepReport report;
  std::vector<Version> swapped;

  std::vector<const Episode*> episodes() const {
    std::vector<const Episode*> all;
    for (const auto& [item, group] : groups) {
      for (const Episode& episode : group.episodes) all.push_back(&episode);
    }
    return all;
  }
};

constexpr std::uint64_t kSeed = 42;

Outcome sweep(const Toy& toy, std::span<const SweepItem> items, const Plan& plan) {
  const auto engine = toy_engine(plan.kv_blocks, plan.threads);
  Outcome outcome;
  int looks = 0;
  std::uint64_t newest = 0;
  const SweepHooks hooks{.on_group =
                             [&](FinishedGroup group) {
                               outcome.groups.emplace(group.item, std::move(group));
                               return ok_status();
                             },
                         .newer = [&]() -> std::optional<NextVersion> {
                           if (std::ranges::count(plan.swaps, ++looks) == 0) return std::nullopt;
                           return as_next(version(Version(++newest)));
                         },
                         .on_swap = [&](Version number) { outcome.swapped.push_back(number); }};
  const SweepSettings settings{.seed = kSeed,
                               .sampling = {},
                               .version = Version(0),
                               .state = version(Version(0)).state_digest,
                               .kv = plan.kv,
                               .rows_per_call = plan.rows_per_call};
  const auto report = run_sweep(*engine, toy.rules, settings, items, hooks);
  EXPECT_TRUE(report.ok()) << report.status().to_string();
  if (report.ok()) outcome.report = *report;
  EXPECT_EQ(engine->usage().sequences, 0);
  EXPECT_EQ(engine->usage().blocks_used, 0);
  return outcome;
}

// Each episode is, to the last bit, what its spans say; and a group of them is one that a file can hold.
void expect_what_the_spans_say(const Toy& toy, std::span<const SweepItem> items, const Outcome& outcome) {
  const auto engine = toy_engine();
  for (const auto& [item, group] : outcome.groups) {
    Group whole;
    whole.identity.run = "owner/run";
    whole.identity.operator_id = OperatorId("o");
    whole.identity.worker = WorkerId("w");
    whole.identity.backend = "cpu";
    whole.identity.group = group_id(whole.identity);
    whole.prompt_tokens = group.prompt_tokens;
    whole.episodes = group.episodes;
    const Status status = check_group(whole);
    EXPECT_TRUE(status.ok()) << status.to_string();
    for (std::uint32_t e = 0; e < group.episodes.size(); ++e) {
      const Episode& episode = group.episodes[e];
      const Episode plain = plain_replay(*engine, toy.rules, items[item].task, kSeed, items[item].sample_group, e, {},
                                         episode.spans, version);
      EXPECT_TRUE(same_episode(episode, plain)) << "group " << item << " episode " << e;
    }
  }
}

void expect_same(const Outcome& a, const Outcome& b) {
  ASSERT_EQ(a.groups.size(), b.groups.size());
  const auto x = a.episodes(), y = b.episodes();
  for (std::size_t i = 0; i < x.size(); ++i) EXPECT_TRUE(same_episode(*x[i], *y[i])) << i;
}

std::int64_t spans_of(const Outcome& outcome, SpanContext context, bool same_version = false) {
  std::int64_t count = 0;
  for (const Episode* episode : outcome.episodes()) {
    for (std::size_t i = 1; i < episode->spans.size(); ++i) {
      const bool same = episode->spans[i].version == episode->spans[i - 1].version;
      count += episode->spans[i].context == context && same == same_version;
    }
  }
  return count;
}

class SweepSwap : public testing::TestWithParam<KvAfterSwap> {
 protected:
  Toy toy_;
  std::vector<SweepItem> items_ = toy_.items(6, 4);
};

TEST_P(SweepSwap, WritesWhatItsSpansSay) {
  const Outcome outcome = sweep(toy_, items_, {.swaps = {6, 12, 13, 22}, .kv = GetParam()});
  expect_what_the_spans_say(toy_, items_, outcome);
  EXPECT_EQ(outcome.report.swaps, 4);
  EXPECT_EQ(outcome.swapped, (std::vector{Version(1), Version(2), Version(3), Version(4)}));
  const bool keeps = GetParam() == KvAfterSwap::kKeep;
  EXPECT_GT(spans_of(outcome, keeps ? SpanContext::kKept : SpanContext::kNew), 10);
  EXPECT_EQ(spans_of(outcome, SpanContext::kKept) > 0, keeps);
}

TEST_P(SweepSwap, WritesWhatItsSpansSayInEveryChunkingAndPool) {
  std::int64_t evictions = 0;
  std::int64_t anew = 0;
  PhiloxStream random(5, static_cast<std::uint64_t>(GetParam()));
  for (const std::int32_t rows : {1, 3, 10, 64}) {
    for (const std::int64_t blocks : {9, 12, 20, 1000}) {
      Plan plan{.swaps = {}, .kv = GetParam(), .rows_per_call = rows, .kv_blocks = blocks};
      for (int i = 0; i < 8; ++i) plan.swaps.push_back(1 + static_cast<int>(random.below(rows == 1 ? 800 : 60)));
      const Outcome outcome = sweep(toy_, items_, plan);
      expect_what_the_spans_say(toy_, items_, outcome);
      evictions += outcome.report.evictions;
      anew += spans_of(outcome, SpanContext::kNew, true);
    }
  }
  EXPECT_GT(evictions, 0);
  // An evicted sequence of two versions is computed again by one.
  EXPECT_EQ(anew > 0, GetParam() == KvAfterSwap::kKeep);
}

TEST_P(SweepSwap, GivesTheSameWithEveryNumberOfThreads) {
  Plan plan{.swaps = {5, 9, 17, 26}, .kv = GetParam(), .rows_per_call = 16, .kv_blocks = 30};
  const Outcome reference = sweep(toy_, items_, plan);
  for (const int threads : {2, 3}) {
    plan.threads = threads;
    expect_same(sweep(toy_, items_, plan), reference);
  }
}

// Versions that come before anything was computed and after each call.
TEST_P(SweepSwap, TakesAVersionAtEveryLook) {
  Plan plan{.swaps = {}, .kv = GetParam(), .rows_per_call = 24};
  for (int look = 1; look <= 40; look += 1) plan.swaps.push_back(look);
  const auto items = toy_.items(2, 2);
  expect_what_the_spans_say(toy_, items, sweep(toy_, items, plan));
}

INSTANTIATE_TEST_SUITE_P(BothWays, SweepSwap, testing::Values(KvAfterSwap::kRecompute, KvAfterSwap::kKeep),
                         [](const auto& info) {
                           return info.param == KvAfterSwap::kKeep ? "OldKvKept" : "OldKvRecomputed";
                         });

TEST(SweepWithNewWeights, BeginsEpisodesThatComeLaterWithThePromptOfTheNewWeights) {
  Toy toy;
  const auto items = toy.items(4, 3);
  // A pool for about one group: the others begin after the swap.
  const Outcome outcome = sweep(toy, items, {.swaps = {8}, .kv = KvAfterSwap::kKeep, .kv_blocks = 12});
  expect_what_the_spans_say(toy, items, outcome);
  std::int64_t late = 0;
  for (const Episode* episode : outcome.episodes()) late += episode->spans[0].version == Version(1);
  EXPECT_GT(late, 0);
}

TEST(SweepWithNewWeights, RefusesAVersionThatIsNotNewer) {
  Toy toy;
  const auto engine = toy_engine();
  const auto items = toy.items(2, 2);
  const SweepSettings settings{
      .seed = 1, .sampling = {}, .version = Version(3), .state = version(Version(3)).state_digest};
  const auto report = run_sweep(*engine, toy.rules, settings, items,
                                {.on_group = [](const FinishedGroup&) { return ok_status(); },
                                 .newer = []() -> std::optional<NextVersion> { return as_next(version(Version(3))); }});
  EXPECT_EQ(report.status().code(), StatusCode::kInternal);
  EXPECT_EQ(engine->usage().sequences, 0);
}

TEST(SweepWithNewWeights, LetsGoOfWhatTheyWereMadeOf) {
  Toy toy;
  const auto engine = toy_engine();
  const SweepSettings settings{
      .seed = 1, .sampling = {}, .version = Version(0), .state = version(Version(0)).state_digest};
  std::weak_ptr<const GridState> made_of;
  bool swapped = false;
  const auto report =
      run_sweep(*engine, toy.rules, settings, toy.items(2, 2),
                {.on_group = [](const FinishedGroup&) { return ok_status(); },
                 .newer = [&]() -> std::optional<NextVersion> {
                   if (swapped) return std::nullopt;
                   const auto state = std::make_shared<const GridState>(toy_model().state);
                   made_of = state;
                   return as_next({.version = Version(1), .state_digest = {}, .state = state, .bytes = 0, .path = ""});
                 },
                 .on_swap =
                     [&](Version) {
                       swapped = true;
                       EXPECT_TRUE(made_of.expired());
                     }});
  ASSERT_TRUE(report.ok()) << report.status().to_string();
  EXPECT_TRUE(swapped);
}

// What a sweep with `refill` did.
struct Refilled {
  std::map<std::size_t, std::vector<Episode>> groups;
  std::vector<SweepItem> items;
  SweepReport report;
};

Refilled refilled_sweep(const Toy& toy, std::int64_t kv_blocks, std::int64_t at_first, std::int64_t all) {
  Refilled refilled;
  const auto items = toy.items(all, 3);
  const auto engine = toy_engine(kv_blocks);
  std::int64_t running = at_first;
  const SweepHooks hooks{.on_group =
                             [&](FinishedGroup group) {
                               refilled.groups[group.item] = std::move(group.episodes);
                               EXPECT_EQ(group.so_far.groups, std::ssize(refilled.groups));
                               return ok_status();
                             },
                         .refill = [&]() -> Result<std::optional<SweepItem>> {
                           if (running == all) return std::optional<SweepItem>();
                           return std::optional(items[static_cast<std::size_t>(running++)]);
                         }};
  const SweepSettings settings{
      .seed = kSeed, .sampling = {}, .version = Version(0), .state = version(Version(0)).state_digest};
  const auto report =
      run_sweep(*engine, toy.rules, settings, std::span(items).first(static_cast<std::size_t>(at_first)), hooks);
  EXPECT_TRUE(report.ok()) << report.status().to_string();
  if (report.ok()) refilled.report = *report;
  EXPECT_EQ(engine->usage().sequences, 0);
  refilled.items = items;
  return refilled;
}

TEST(SweepRefill, GivesEachGroupWhatItGivesAlone) {
  Toy toy;
  for (const std::int64_t blocks : {12, 1000}) {
    const Refilled refilled = refilled_sweep(toy, blocks, 3, 12);
    ASSERT_EQ(refilled.groups.size(), 12u);
    EXPECT_EQ(refilled.report.groups, 12);
    EXPECT_EQ(refilled.report.episodes, 36);
    for (const auto& [item, episodes] : refilled.groups) {
      const Outcome alone = sweep(toy, std::span(refilled.items).subspan(item, 1), {});
      for (std::size_t e = 0; e < episodes.size(); ++e) {
        EXPECT_TRUE(same_episode(episodes[e], alone.groups.at(0).episodes[e])) << item << " " << e;
      }
    }
  }
}

TEST(SweepRefill, KeepsTheBatchFull) {
  Toy toy;
  const Refilled refilled = refilled_sweep(toy, 1000, 3, 12);
  std::int64_t calls = 0;
  for (std::size_t first = 0; first < 12; first += 3) {
    calls += sweep(toy, std::span(refilled.items).subspan(first, 3), {}).report.calls;
  }
  EXPECT_LT(refilled.report.calls, calls);
}

TEST(SweepRefill, EndsWithTheErrorOfTheOneThatGivesGroups) {
  Toy toy;
  const auto engine = toy_engine();
  const auto items = toy.items(2, 2);
  const SweepSettings settings{
      .seed = kSeed, .sampling = {}, .version = Version(0), .state = version(Version(0)).state_digest};
  const auto report =
      run_sweep(*engine, toy.rules, settings, items,
                {.on_group = [](const FinishedGroup&) { return ok_status(); },
                 .refill = []() -> Result<std::optional<SweepItem>> { return unavailable("the disk is gone"); }});
  EXPECT_EQ(report.status().message(), "the disk is gone");
  EXPECT_EQ(engine->usage().sequences, 0);
}

}  // namespace
}  // namespace flotilla
