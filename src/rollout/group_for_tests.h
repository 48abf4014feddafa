#pragma once

#include "rollout/group.h"

namespace flotilla {

// A whole group of two episodes: one of two turns with an observation and two versions, the second of which came in the
// observation and kept what was computed; one cut off by the token limit.
inline Group make_test_group() {
  Group group;
  GroupIdentity& identity = group.identity;
  identity.run = "owner/run";
  identity.seed = 18446744073709551615u;
  identity.operator_id = OperatorId("someone");
  identity.worker = WorkerId("0123456789abcdef0123456789abcdef");
  identity.counter = 7;
  identity.task = 12345;
  identity.backend = "cpu-avx2";
  identity.tokenizer = sha256("tokenizer");
  identity.environment = sha256("environment");
  identity.corpus = sha256("corpus");
  identity.sampling = {.temperature = 0.7f, .top_k = 0, .top_p = 1};
  identity.task_metadata = std::string("\x00\xff opaque", 9);
  identity.group = group_id(identity);
  group.prompt_tokens = 3;

  constexpr auto kP = TokenSource::kPrompt;
  constexpr auto kM = TokenSource::kModel;
  constexpr auto kE = TokenSource::kEnvironment;
  Episode two_turns;
  two_turns.tokens = {1, 2, 3, 40, 41, 50, 51, 52, 42};
  two_turns.sources = {kP, kP, kP, kM, kM, kE, kE, kE, kM};
  two_turns.logprobs = {0, 0, 0, -0.25f, -1.5f, 0, 0, 0, -0.1f};
  two_turns.spans = {{3, 6, Version(4), sha256("four"), SpanContext::kNew},
                     {6, 9, Version(5), sha256("five"), SpanContext::kKept}};
  two_turns.turns = {5, 9};
  two_turns.end = EpisodeEnd::kDone;
  two_turns.reward = 1;
  two_turns.metrics = {{"answered", 1}, {"searches", 1}};
  Episode cut_off;
  cut_off.tokens = {1, 2, 3, 44, 45, 46};
  cut_off.sources = {kP, kP, kP, kM, kM, kM};
  cut_off.logprobs = {0, 0, 0, -3, 0, -0.125f};
  cut_off.spans = {{3, 6, Version(5), sha256("five")}};
  cut_off.turns = {6};
  cut_off.end = EpisodeEnd::kTokenLimit;
  cut_off.metrics = {{"answered", 0}, {"searches", 0}};
  group.episodes = {two_turns, cut_off};
  return group;
}

}  // namespace flotilla
