// How good a policy can be: docs/environments/dictionary.md records what this prints.
#include <filesystem>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "base/files.h"
#include "env/dictionary_entry.h"
#include "env/environment.h"

namespace flotilla {
namespace {

TEST(DictionaryCeiling, TheWholeDescriptionAsTheQueryMostlyFindsTheTerm) {
  const std::filesystem::path wordnet = "/usr/share/wordnet";
  if (!std::filesystem::exists(wordnet / "data.noun")) GTEST_SKIP() << "no WordNet (package wordnet-base)";
  const Bytes artifact = build_environment_artifact("dictionary", wordnet).value();
  const Dictionary dictionary = read_dictionary(artifact).value();
  TemporaryFolder cache;
  const auto environment = open_environment("dictionary", artifact, cache.path()).value();
  const std::uint64_t questions = environment->task_count(Split::kHeldOut);
  ASSERT_EQ(questions, 500u);

  int first = 0, among_three = 0;
  for (std::uint64_t i = 0; i < questions; ++i) {
    const Task task = environment->task(Split::kHeldOut, i).value();
    const DictionaryEntry& entry = dictionary.entries[environment->task_count(Split::kTrain) + i];
    const std::vector<std::string> search = {"<search>" + entry.description + "</search>"};
    const std::string observation = environment->step(task, search, 0).value().observation;
    const std::string begin = "\n<information>\n";
    ASSERT_TRUE(observation.starts_with(begin));
    const std::string title = observation.substr(begin.size(), observation.find(": ") - begin.size());
    first += environment->reward(task, std::vector{search[0], "<answer>" + title + "</answer>"}).value().value == 1;
    among_three += environment->reward(task, search).value().metrics.at("found") == 1;
  }
  fmt::print("answer = first title: {:.1f} %, among three: {:.1f} % of {} held-out questions; artifact {} bytes\n",
             100.0 * first / questions, 100.0 * among_three / questions, questions, artifact.size());
  EXPECT_GE(first, 375);
  EXPECT_GE(among_three, 425);
}

}  // namespace
}  // namespace flotilla
