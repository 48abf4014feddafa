#include "rollout/evaluate.h"

#include <gtest/gtest.h>

#include <set>

#include "rollout/toy_for_tests.h"

namespace flotilla {
namespace {

TEST(PassAtK, IsTheUnbiasedEstimator) {
  EXPECT_DOUBLE_EQ(pass_at_k(8, 3, 1), 0.375);
  EXPECT_NEAR(pass_at_k(8, 3, 2), 0.642857, 1e-6);
  EXPECT_NEAR(pass_at_k(8, 3, 4), 0.928571, 1e-6);
  EXPECT_EQ(pass_at_k(8, 3, 8), 1);
  EXPECT_EQ(pass_at_k(8, 0, 8), 0);
  EXPECT_EQ(pass_at_k(1, 1, 1), 1);
}

TEST(MeanEstimate, HasTheStandardErrorOfTheMean) {
  const Estimate estimate = mean_estimate({1, 0, 0, 1});
  EXPECT_DOUBLE_EQ(estimate.value, 0.5);
  EXPECT_NEAR(estimate.standard_error, 0.288675, 1e-6);  // sqrt(1/3)/sqrt(4)
  EXPECT_EQ(mean_estimate({0.25}).standard_error, 0);
}

EvaluateOptions options() {
  EvaluateOptions options;
  options.questions = 20;
  options.samples = 4;
  options.seed = 5;
  options.questions_per_sweep = 6;
  return options;
}

Evaluation run(const EvaluateOptions& options, Engine& engine) {
  Toy toy;
  auto evaluation = evaluate(engine, toy.rules, options);
  EXPECT_TRUE(evaluation.ok()) << evaluation.status().to_string();
  return std::move(evaluation).value();
}

bool same_questions(const Evaluation& a, const Evaluation& b) {
  return std::ranges::equal(a.questions, b.questions, [](const QuestionResult& x, const QuestionResult& y) {
    return x.task == y.task && x.passed == y.passed && x.reward == y.reward && x.turns == y.turns;
  });
}

TEST(Evaluate, DoesNotDependOnBatchAndSharing) {
  const Evaluation reference = run(options(), *toy_engine());
  EXPECT_EQ(reference.sweeps, 4);
  EXPECT_GE(reference.turns.value, 1);
  EXPECT_GT(reference.turns.standard_error, 0);
  for (const std::int64_t batch : {1, 20}) {
    for (const bool share : {true, false}) {
      EvaluateOptions other = options();
      other.questions_per_sweep = batch;
      other.share_prefixes = share;
      const Evaluation evaluation = run(other, *toy_engine());
      EXPECT_TRUE(same_questions(evaluation, reference));
      EXPECT_EQ(evaluation.sweeps, 20 / batch);
      EXPECT_EQ(evaluation.work.model_tokens, reference.work.model_tokens);
      if (!share) {
        EXPECT_GE(evaluation.work.prompt_tokens, 3 * reference.work.prompt_tokens);
      }
    }
  }
}

TEST(Evaluate, OfOtherPartsOfTheOrderSharesNoQuestions) {
  const Evaluation all = run(options(), *toy_engine());
  EvaluateOptions part = options();
  part.questions = 8;
  part.skip = 12;
  const Evaluation tail = run(part, *toy_engine());
  for (std::size_t i = 0; i < 8; ++i) {
    EXPECT_EQ(tail.questions[i].task, all.questions[12 + i].task);
    EXPECT_EQ(tail.questions[i].reward, all.questions[12 + i].reward);
  }
  Toy toy;
  part.skip = 43;
  EXPECT_EQ(evaluate(*toy_engine(), toy.rules, part).status().code(), StatusCode::kInvalidArgument) << "of 50";
  part.skip = -1;
  EXPECT_EQ(evaluate(*toy_engine(), toy.rules, part).status().code(), StatusCode::kInvalidArgument);
}

TEST(Evaluate, CountsWhatPassed) {
  const Evaluation evaluation = run(options(), *toy_engine());
  ASSERT_EQ(evaluation.questions.size(), 20u);
  std::set<std::uint64_t> tasks;
  double passed = 0;
  for (const QuestionResult& question : evaluation.questions) {
    tasks.insert(question.task);
    passed += question.passed;
    EXPECT_DOUBLE_EQ(question.reward, question.passed / 4.0);
  }
  EXPECT_EQ(tasks.size(), 20u);
  EXPECT_GT(passed, 0);
  EXPECT_NEAR(evaluation.pass_at_k.at(1).value, passed / 80, 1e-12);
  EXPECT_NEAR(evaluation.reward.value, passed / 80, 1e-12);
  EXPECT_GE(evaluation.pass_at_k.at(4).value, evaluation.pass_at_k.at(2).value);
  EXPECT_EQ(evaluation.pass_at_k.size(), 3u);
  EXPECT_EQ(evaluation.work.episodes, 80);
  EXPECT_TRUE(evaluation.metrics.contains("asked"));
}

TEST(Evaluate, DoesNotDependOnTheSizeOfItsSweeps) {
  const Evaluation reference = run(options(), *toy_engine());
  for (const std::int64_t size : {1, 20, 100}) {
    EvaluateOptions other = options();
    other.questions_per_sweep = size;
    const Evaluation evaluation = run(other, *toy_engine());
    for (std::size_t i = 0; i < 20; ++i) {
      EXPECT_EQ(evaluation.questions[i].task, reference.questions[i].task);
      EXPECT_EQ(evaluation.questions[i].passed, reference.questions[i].passed);
    }
  }
}

TEST(Evaluate, AsksOtherQuestionsWithAnotherSeed) {
  EvaluateOptions other = options();
  other.seed = 6;
  const Evaluation a = run(options(), *toy_engine());
  const Evaluation b = run(other, *toy_engine());
  EXPECT_FALSE(std::ranges::equal(a.questions, b.questions, {}, &QuestionResult::task, &QuestionResult::task));
  EXPECT_FALSE(compare(a, b).ok());
}

TEST(Evaluate, TellsItsProgressAndKeepsEpisodesToRead) {
  Toy toy;
  std::vector<std::int64_t> told;
  const auto evaluation =
      evaluate(*toy_engine(), toy.rules, options(), [&](std::int64_t done) { told.push_back(done); });
  ASSERT_TRUE(evaluation.ok());
  ASSERT_EQ(told.size(), 20u);
  EXPECT_EQ(told.back(), 20);
  ASSERT_EQ(evaluation->examples.size(), 3u);
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(evaluation->examples[i].task, evaluation->questions[i].task);
    EXPECT_FALSE(evaluation->examples[i].text.empty());
    EXPECT_FALSE(evaluation->examples[i].end.empty());
  }
}

TEST(Evaluate, StopsWhenAsked) {
  Toy toy;
  std::stop_source stop;
  const auto evaluation = evaluate(
      *toy_engine(), toy.rules, options(), [&](std::int64_t) { stop.request_stop(); }, stop.get_token());
  EXPECT_EQ(evaluation.status().code(), StatusCode::kCancelled);
}

TEST(Evaluate, RefusesNumbersThatMakeNoSense) {
  Toy toy;
  const auto engine = toy_engine();
  const auto code = [&](auto change) {
    EvaluateOptions changed = options();
    change(changed);
    return evaluate(*engine, toy.rules, changed).status().code();
  };
  EXPECT_EQ(code([](auto& o) { o.questions = 51; }), StatusCode::kInvalidArgument);
  EXPECT_EQ(code([](auto& o) { o.questions = 0; }), StatusCode::kInvalidArgument);
  EXPECT_EQ(code([](auto& o) { o.samples = 0; }), StatusCode::kInvalidArgument);
  EXPECT_EQ(code([](auto& o) { o.questions_per_sweep = 0; }), StatusCode::kInvalidArgument);
}

TEST(Compare, RefusesAnotherTemperature) {
  Evaluation before;
  before.options.samples = 2;
  before.questions = {{1, 0, 0}, {2, 1, 0.5}};
  Evaluation after = before;
  after.options.sampling.temperature = 0.5f;
  EXPECT_EQ(compare(before, after).status().code(), StatusCode::kInvalidArgument);
}

TEST(Compare, PairsTheQuestions) {
  Evaluation before;
  before.options.samples = 2;
  before.questions = {{1, 0, 0}, {2, 1, 0.5}, {3, 2, 1}, {4, 0, 0}};
  Evaluation after = before;
  after.questions = {{1, 1, 0.5}, {2, 2, 1}, {3, 2, 1}, {4, 0, 0}};
  const auto comparison = compare(before, after);
  ASSERT_TRUE(comparison.ok());
  const PairedEstimate& first = comparison->at(1);
  EXPECT_DOUBLE_EQ(first.before.value, 0.375);
  EXPECT_DOUBLE_EQ(first.after.value, 0.625);
  EXPECT_DOUBLE_EQ(first.difference.value, 0.25);
  EXPECT_NEAR(first.difference.standard_error, 0.144338, 1e-6);  // of .5 .5 0 0: sqrt(1/12)/2
  EXPECT_DOUBLE_EQ(comparison->at(2).difference.value, 0.25);
}

TEST(Compare, RefusesOtherSamplesOrQuestions) {
  Evaluation before;
  before.questions = {{1, 0, 0}};
  before.options.samples = 2;
  Evaluation after = before;
  after.questions[0].task = 2;
  EXPECT_EQ(compare(before, after).status().code(), StatusCode::kInvalidArgument);
  after = before;
  after.options.samples = 3;
  EXPECT_EQ(compare(before, after).status().code(), StatusCode::kInvalidArgument);
}

TEST(EvaluationJson, HasTheFieldsOfAResultFile) {
  const Evaluation evaluation = run(options(), *toy_engine());
  const auto json = evaluation_to_json(evaluation);
  EXPECT_EQ(json["pass_at_1"]["value"], evaluation.pass_at_k.at(1).value);
  EXPECT_EQ(json["questions"], 20);
  EXPECT_EQ(json["by_question"].size(), 20u);
  EXPECT_EQ(json["examples"].size(), 3u);
  EXPECT_FALSE(json.dump().empty());
  const auto both = comparison_to_json(evaluation, evaluation, compare(evaluation, evaluation).value());
  EXPECT_EQ(both["pass_at_1"]["before"], both["pass_at_1"]["after"]);
  EXPECT_EQ(both["standard_error"]["difference"], 0);
  EXPECT_EQ(both["difference"], 0);
  EXPECT_EQ(both["pass_at_k"].size(), 3u);
}

}  // namespace
}  // namespace flotilla
