#include "rollout/span_history.h"

#include <gtest/gtest.h>

#include <fmt/format.h>

namespace flotilla {
namespace {

Sha256Digest state(int version) { return sha256(std::string_view("state").substr(static_cast<std::size_t>(version))); }

void begin_anew(SpanHistory& history, int version) { history.begin_anew(Version(version), state(version)); }
bool keep(SpanHistory& history, int computed, int version) {
  return history.keep(computed, Version(version), state(version));
}
void sampled(SpanHistory& history, std::initializer_list<int> positions) {
  for (const int position : positions) history.sampled(position);
}

// "[5, 8) 1 new, ..."
std::string finish(SpanHistory history, int size) {
  std::string text;
  for (const VersionSpan& span : std::move(history).finish(size)) {
    EXPECT_EQ(span.state, state(static_cast<int>(span.version.value())));
    text += fmt::format("{}[{}, {}) {} {}", text.empty() ? "" : ", ", span.begin, span.end, span.version.value(),
                        span_context_name(span.context));
  }
  return text;
}

TEST(SpanHistory, OfOneVersionIsOneSpan) {
  SpanHistory history;
  begin_anew(history, 1);
  sampled(history, {5, 6, 9});
  EXPECT_EQ(finish(history, 10), "[5, 10) 1 new");
}

TEST(SpanHistory, KeepsWhatIsComputedUpToTheTokenThatWaits) {
  SpanHistory history;
  begin_anew(history, 1);
  sampled(history, {5, 6});
  EXPECT_TRUE(keep(history, 6, 2)) << "token 6 was sampled, and is not computed";
  sampled(history, {7});
  EXPECT_EQ(finish(history, 8), "[5, 7) 1 new, [7, 8) 2 kept");
}

TEST(SpanHistory, KeepsAnObservationThatIsComputedInPart) {
  SpanHistory history;
  begin_anew(history, 1);
  sampled(history, {5});
  EXPECT_TRUE(keep(history, 8, 2)) << "tokens 6 to 9 are an observation";
  sampled(history, {10});
  EXPECT_EQ(finish(history, 11), "[5, 9) 1 new, [9, 11) 2 kept");
}

TEST(SpanHistory, ForgetsAVersionThatComputedNothing) {
  SpanHistory history;
  begin_anew(history, 1);
  sampled(history, {5, 6});
  EXPECT_TRUE(keep(history, 6, 2));
  EXPECT_TRUE(keep(history, 6, 3));
  sampled(history, {7});
  EXPECT_EQ(finish(history, 8), "[5, 7) 1 new, [7, 8) 3 kept");
}

TEST(SpanHistory, CannotKeepAContextThatNoTokenWasSampledIn) {
  SpanHistory history;
  begin_anew(history, 1);
  EXPECT_FALSE(keep(history, 4, 2));
  begin_anew(history, 2);
  sampled(history, {5});
  begin_anew(history, 3);
  EXPECT_FALSE(keep(history, 5, 4));
}

TEST(SpanHistory, AContextThatIsComputedAgainIsTheSame) {
  SpanHistory history;
  begin_anew(history, 1);
  sampled(history, {5, 6});
  begin_anew(history, 1);
  EXPECT_FALSE(keep(history, 3, 2)) << "tokens that were sampled are not computed again yet";
  EXPECT_TRUE(keep(history, 6, 2));
  sampled(history, {7});
  EXPECT_EQ(finish(history, 8), "[5, 7) 1 new, [7, 8) 2 kept");
}

TEST(SpanHistory, AKeptContextThatIsComputedAgainIsAnother) {
  SpanHistory history;
  begin_anew(history, 1);
  sampled(history, {5, 6});
  EXPECT_TRUE(keep(history, 6, 2));
  sampled(history, {7});
  begin_anew(history, 2);
  sampled(history, {8});
  EXPECT_EQ(finish(history, 9), "[5, 7) 1 new, [7, 8) 2 kept, [8, 9) 2 new");
}

TEST(SpanHistory, WhatWasGivenUpBeforeATokenCameOfItLeavesNoTrace) {
  SpanHistory history;
  begin_anew(history, 1);
  sampled(history, {5});
  EXPECT_TRUE(keep(history, 7, 2)) << "in an observation";
  EXPECT_TRUE(keep(history, 8, 3));
  begin_anew(history, 3);
  sampled(history, {10});
  EXPECT_EQ(finish(history, 11), "[5, 10) 1 new, [10, 11) 3 new");
}

}  // namespace
}  // namespace flotilla
