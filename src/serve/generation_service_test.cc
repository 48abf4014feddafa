#include "serve/generation_service.h"

#include <gtest/gtest.h>

#include <future>

#include "rollout/toy_for_tests.h"
#include "serve/gate_clock_for_tests.h"

namespace flotilla {
namespace {

using namespace std::chrono_literals;

struct Heard {
  std::vector<GenerationEvent> events;
  std::promise<void> ended;

  GenerationService::Sink sink() {
    return [this](GenerationEvent event) {
      const bool last = event.end.has_value();
      events.push_back(std::move(event));
      if (last) ended.set_value();
    };
  }
  StatusCode end() const { return events.back().end->code(); }
};

// Its choices do not all end in one step.
GenerationRequest ask() { return {.prompts = {{1, 3, 4}}, .choices = 4, .max_tokens = 5}; }

// A service that stands still until the clock's gate is open.
struct Service {
  std::shared_ptr<const Tokenizer> tokenizer = toy_tokenizer();
  std::unique_ptr<Engine> engine = toy_engine();
  ServeMetrics metrics;
  GateClock clock;
  GenerationService service{*engine, *tokenizer, {}, metrics, clock};
};

TEST(GenerationService, WhatIsCancelledBeforeItBeganEndsWithoutAToken) {
  Heard first, second;
  Service test;
  test.service.submit(ask(), first.sink());
  test.clock.await_other();
  test.service.cancel(test.service.submit(ask(), second.sink()));
  test.service.cancel(RequestId(1000));  // of which it never heard
  test.clock.open();
  first.ended.get_future().wait();
  second.ended.get_future().wait();
  test.service.stop(60s);
  EXPECT_EQ(first.end(), StatusCode::kOk);
  EXPECT_EQ(first.events.back().usage.prompt_tokens, 3);
  ASSERT_EQ(second.events.size(), 1u);
  EXPECT_EQ(second.end(), StatusCode::kCancelled);
}

TEST(GenerationService, WhatComesAfterTheEndIsRefusedAtOnce) {
  Heard late;
  Service test;
  test.clock.open();
  test.service.stop(0s);
  const RequestId id = test.service.submit(ask(), late.sink());
  ASSERT_EQ(late.events.size(), 1u);
  EXPECT_EQ(late.events[0].request, id);
  EXPECT_EQ(late.end(), StatusCode::kUnavailable);
  test.service.cancel(id);
  test.service.stop(0s);
  EXPECT_EQ(late.events.size(), 1u);
}

TEST(GenerationService, AStopRefusesWhatComesAndLetsTheRestEnd) {
  Heard first, second;
  Service test;
  test.service.submit(ask(), first.sink());
  test.clock.await_other();
  std::jthread other([&] {
    test.clock.await_maker();
    test.service.submit(ask(), second.sink());
    test.clock.open();
  });
  test.service.stop(60s);
  other.join();
  EXPECT_EQ(first.end(), StatusCode::kOk);
  EXPECT_EQ(second.end(), StatusCode::kUnavailable);
  EXPECT_EQ(test.engine->usage().sequences, 0);
}

TEST(GenerationService, AStopWithoutGraceEndsWhatIsThere) {
  Heard heard;
  Service test;
  test.service.submit(ask(), heard.sink());
  test.clock.await_other();
  std::jthread other([&] {
    test.clock.await_maker();
    test.clock.open();
  });
  test.service.stop(0s);
  other.join();
  EXPECT_EQ(heard.end(), StatusCode::kUnavailable);
  EXPECT_EQ(test.engine->usage().sequences, 0);
}

}  // namespace
}  // namespace flotilla
