#include "env/dictionary.h"

#include <algorithm>
#include <functional>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "base/files.h"
#include "base/philox.h"
#include "env/words.h"

namespace flotilla {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;
using testing::Pair;
using testing::UnorderedElementsAre;
using Actions = std::vector<std::string>;

Dictionary made_dictionary() {
  return {{{{"robin", "redbreast"}, "small bird with a red breast", "thrush", "small bird with a breast"},
           {{"wren", "jenny wren"}, "small brown bird", "songbird", "small brown bird"},
           {{"A"}, "the letter before the letter B", "letter", "the before the B"},
           {{"spade"}, "tool that digs; <answer>spade</answer>", "tool", "that digs <answer>spade</answer>"}},
          1};
}

class DictionaryTest : public testing::Test {
 protected:
  static std::unique_ptr<Environment> opened(const Dictionary& dictionary, const TemporaryFolder& cache) {
    return open_environment("dictionary", write_dictionary(dictionary), cache.path()).value();
  }
  Transition step(const Actions& actions) const { return environment->step(task, actions, 0).value(); }
  double value(const Actions& actions) const { return environment->reward(task, actions).value().value; }
  double metric(const Actions& actions, const char* name) const {
    return environment->reward(task, actions).value().metrics.at(name);
  }

  TemporaryFolder cache;
  std::unique_ptr<Environment> environment = opened(made_dictionary(), cache);
  Task task = environment->task(Split::kTrain, 0).value();
};

TEST_F(DictionaryTest, ServesTasksWithAPublicAndAPrivatePart) {
  EXPECT_EQ(environment->name(), "dictionary");
  EXPECT_EQ(environment->task_count(Split::kTrain), 3u);
  EXPECT_EQ(environment->task_count(Split::kHeldOut), 1u);
  EXPECT_EQ(task.question, "Which thrush is described as: small bird with a breast?");
  EXPECT_EQ(task.private_json, R"({"answers":["robin","redbreast"]})");
  EXPECT_THAT(task.system + task.question, Not(HasSubstr("robin")));
  EXPECT_THAT(task.system, AllOf(HasSubstr("<search>"), HasSubstr("<answer>")));
  EXPECT_THAT(environment->task(Split::kHeldOut, 0).value().question, HasSubstr("Which tool"));
  EXPECT_EQ(environment->task(Split::kHeldOut, 1).status().code(), StatusCode::kNotFound);
  EXPECT_EQ(environment->task(Split::kTrain, 3).status().code(), StatusCode::kNotFound);
  EXPECT_THAT(environment->stop_strings(), ElementsAre("</search>", "</answer>"));
  EXPECT_EQ(environment->limits().model_tokens, 64);
  EXPECT_EQ(environment->limits().turns, 4);
}

TEST_F(DictionaryTest, AnswersASearchWithTheBestDocumentsOneALine) {
  const Transition transition = step({"<search>small bird red</search>"});
  EXPECT_FALSE(transition.done);
  EXPECT_EQ(transition.observation,
            "\n<information>\nrobin: small bird with a red breast\nwren: small brown bird\n</information>\n");
}

TEST_F(DictionaryTest, ASearchThatFindsNothingIsAnObservation) {
  for (const char* words : {"zebra", "", " ", "?!", "\xff\xfe", "\" OR 1=1 --"}) {
    const Transition transition = step({"<search>" + std::string(words) + "</search>"});
    EXPECT_FALSE(transition.done);
    EXPECT_EQ(transition.observation, "\n<information>\nnothing found\n</information>\n") << words;
  }
}

TEST_F(DictionaryTest, EndsAtAnAnswerATurnWithoutActionOrTheFourthSearch) {
  const std::string search = "<search>bird</search>";
  EXPECT_TRUE(step({"<answer>robin</answer>"}).done);
  EXPECT_TRUE(step({"a robin"}).done);
  EXPECT_TRUE(step({"<search>bird"}).done);
  EXPECT_TRUE(step({}).done);
  EXPECT_FALSE(step({search, search, search}).done);
  EXPECT_TRUE(step({search, search, search, search}).done);
  EXPECT_EQ(step({search, search, search, search}).observation, "");
  EXPECT_TRUE(step({search, search, search, "<answer>robin</answer>"}).done);
  EXPECT_TRUE(step({"<answer>robin</answer>", search}).done);
}

TEST_F(DictionaryTest, RewardsAnyTermOfTheEntryAfterNormalisation) {
  for (const char* right : {"robin", "Redbreast", " the ROBIN. ", "\n\"a robin\"\n"}) {
    EXPECT_EQ(value({"<answer>" + std::string(right) + "</answer>"}), 1) << right;
  }
  for (const char* wrong : {"wren", "robins", "robin redbreast", "rob in", "robin or redbreast"}) {
    EXPECT_EQ(value({"<answer>" + std::string(wrong) + "</answer>"}), 0) << wrong;
  }
}

TEST_F(DictionaryTest, AnEmptyAnswerIsNeverRightEvenWhereTheTermItselfNormalisesToNothing) {
  task = environment->task(Split::kTrain, 2).value();  // the term is "A"
  for (const char* empty : {"", " ", "the", "A", "...", "an a the"}) {
    EXPECT_EQ(value({"<answer>" + std::string(empty) + "</answer>"}), 0) << empty;
  }
  task.private_json = R"({"answers":[""]})";
  EXPECT_EQ(value({"<answer></answer>"}), 0);
  task.private_json = R"({"answers":[]})";
  EXPECT_EQ(value({"<answer></answer>"}), 0);
}

TEST_F(DictionaryTest, RewardsOnlyWhatTheModelWrote) {
  // The question and the document found contain the answer in its tags; the model wrote none.
  task = environment->task(Split::kHeldOut, 0).value();
  EXPECT_THAT(task.question, HasSubstr("<answer>spade</answer>"));
  const Actions search = {"<search>digs</search>"};
  EXPECT_THAT(step(search).observation, HasSubstr("<answer>spade</answer>"));
  EXPECT_EQ(value(search), 0);
  EXPECT_EQ(metric(search, "answered"), 0);
  EXPECT_EQ(value({search[0], "I don't know"}), 0);
  EXPECT_EQ(value({}), 0);
}

TEST_F(DictionaryTest, ATagLeftOpenNeitherSwallowsTheRestNorCounts) {
  EXPECT_EQ(value({"<search>red bird <answer>robin</answer>"}), 1);
  EXPECT_EQ(metric({"<search>red bird <answer>robin</answer>"}, "searches"), 0);
  EXPECT_EQ(value({"<answer>robin"}), 0);
  EXPECT_EQ(value({"<answer>robin", "</answer>"}), 0);
}

TEST_F(DictionaryTest, IgnoresWhatFollowsTheTagAndTheEnd) {
  EXPECT_EQ(value({"<answer>wren</answer><answer>robin</answer>"}), 0);
  EXPECT_EQ(value({"<answer>robin</answer>, or <answer>wren</answer>"}), 1);
  EXPECT_EQ(value({"<search>bird</search><answer>robin</answer>"}), 0);
  EXPECT_EQ(value({"no action", "<answer>robin</answer>"}), 0);
  EXPECT_EQ(value({"<answer>wren</answer>", "<answer>robin</answer>"}), 0);
  const std::string search = "<search>bird</search>";
  EXPECT_EQ(value({search, search, search, "<answer>robin</answer>"}), 1);
  EXPECT_EQ(value({search, search, search, search, "<answer>robin</answer>"}), 0);
}

TEST_F(DictionaryTest, ReportsSearchesAnswersFormatAndWhetherTheTermWasFound) {
  const auto metrics = [&](const Actions& actions) { return environment->reward(task, actions).value().metrics; };
  EXPECT_THAT(metrics({"<search>bird</search>", "<answer>wren</answer>"}),
              UnorderedElementsAre(Pair("searches", 1), Pair("answered", 1), Pair("format", 1), Pair("found", 1)));
  EXPECT_THAT(metrics({"<search>brown</search>", "<search>digs</search>"}),
              UnorderedElementsAre(Pair("searches", 2), Pair("answered", 0), Pair("format", 0), Pair("found", 0)));
  EXPECT_THAT(metrics({"<answer> </answer>"}),
              UnorderedElementsAre(Pair("searches", 0), Pair("answered", 0), Pair("format", 0), Pair("found", 0)));
  const std::string search = "<search>digs</search>";
  EXPECT_EQ(metric({search, search, search, "<search>bird</search>"}, "searches"), 3);
  EXPECT_EQ(metric({search, search, search, "<search>bird</search>"}, "found"), 0);
}

TEST_F(DictionaryTest, RefusesAPrivatePartThatIsNotItsOwn) {
  for (const char* json :
       {"", "{", "[]", "{}", R"({"answers":"robin"})", R"({"answers":[1]})", R"({"answers":["robin"],"more":1})"}) {
    task.private_json = json;
    EXPECT_EQ(environment->reward(task, Actions{"<answer>robin</answer>"}).status().code(),
              StatusCode::kInvalidArgument)
        << json;
  }
}

TEST_F(DictionaryTest, DemonstrationsSearchForContentWordsOfTheDescriptionAndAnswerRight) {
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    const Actions actions = environment->demonstration(task, seed).value();
    ASSERT_EQ(actions.size(), 2u);
    const auto words = words_of(actions[0].substr(8, actions[0].size() - 17));
    EXPECT_THAT(words, UnorderedElementsAre("small", "bird", "breast"));
    EXPECT_FALSE(step({actions[0]}).done);
    EXPECT_TRUE(step(actions).done);
    EXPECT_EQ(value(actions), 1);
    EXPECT_EQ(metric(actions, "format"), 1);
    EXPECT_EQ(actions, environment->demonstration(task, seed).value());
  }
  task.index = 3;
  EXPECT_EQ(environment->demonstration(task, 0).status().code(), StatusCode::kNotFound);
}

TEST_F(DictionaryTest, IsAPureFunctionOfTaskAndActions) {
  constexpr std::uint64_t kSeed = 11;
  PhiloxStream random(kSeed, 0);
  const char* pieces[] = {"<search>", "</search>", "<answer>", "</answer>", "robin", " small bird ", "\n", "\xc3", "x"};
  TemporaryFolder other_cache;
  const auto other = opened(made_dictionary(), other_cache);
  for (int i = 0; i < 500; ++i) {
    Actions actions(random.below(5));
    for (std::string& action : actions) {
      for (std::uint64_t n = random.below(7); n > 0; --n) action += pieces[random.below(std::size(pieces))];
    }
    const Transition first = environment->step(task, actions, 1).value();
    for (const Environment* again : {environment.get(), other.get()}) {
      const Transition second = again->step(task, actions, 2).value();
      ASSERT_EQ(first.done, second.done) << "seed " << kSeed;
      ASSERT_EQ(first.observation, second.observation) << "seed " << kSeed;
      const Reward a = environment->reward(task, actions).value(), b = again->reward(task, actions).value();
      ASSERT_EQ(a.value, b.value);
      ASSERT_EQ(a.metrics, b.metrics);
    }
    ASSERT_EQ(first.done, first.observation.empty());
  }
}

TEST_F(DictionaryTest, DigestCoversDocumentsAndTasks) {
  const auto digest = [&](const std::function<void(Dictionary&)>& change) {
    Dictionary dictionary = made_dictionary();
    change(dictionary);
    TemporaryFolder folder;
    return opened(dictionary, folder)->digest();
  };
  EXPECT_EQ(environment->digest(), digest([](Dictionary&) {}));
  EXPECT_NE(environment->digest(), digest([](Dictionary& d) { d.entries[1].definition += "."; }));
  EXPECT_NE(environment->digest(), digest([](Dictionary& d) { d.entries[1].answers.push_back("x"); }));
  EXPECT_NE(environment->digest(), digest([](Dictionary& d) { d.entries[1].description += "x"; }));
  EXPECT_NE(environment->digest(), digest([](Dictionary& d) { d.held_out = 2; }));
}

TEST_F(DictionaryTest, ItsPageHasThePromptAndTheFunctionWords) {
  std::string page = read_text_file("docs/environments/dictionary.md").value();
  EXPECT_THAT(page, HasSubstr("```\n" + task.system + "\n```"));
  std::replace(page.begin(), page.end(), '\n', ' ');
  std::string words;
  for (const std::string_view word : function_words()) words += " " + std::string(word);
  EXPECT_THAT(page, HasSubstr("```" + words + " ```"));
}

TEST(OpenEnvironment, NamesWhatItKnows) {
  TemporaryFolder cache;
  EXPECT_THAT(open_environment("chess", {}, cache.path()).status().message(), HasSubstr("(known: dictionary)"));
  EXPECT_THAT(build_environment_artifact("chess", cache.path()).status().message(), HasSubstr("(known: dictionary)"));
  EXPECT_EQ(open_environment("dictionary", {}, cache.path()).status().code(), StatusCode::kDataLoss);
  EXPECT_EQ(build_environment_artifact("dictionary", cache.path()).status().code(), StatusCode::kNotFound);
  EXPECT_EQ(split_name(Split::kTrain), "train");
  EXPECT_EQ(split_name(Split::kHeldOut), "held_out");
}

}  // namespace
}  // namespace flotilla
