#include "env/dictionary.h"

#include <algorithm>
#include <array>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/philox.h"
#include "env/dictionary_turn.h"
#include "env/document_index.h"
#include "env/words.h"

namespace flotilla {
namespace {

constexpr std::uint32_t kRules = 1;  // rises when the same artifact is to be played by other rules
constexpr std::size_t kMaxSearches = 3;
constexpr std::uint32_t kResults = 3;
constexpr std::size_t kDemonstratedWords = 4;
constexpr RankingParams kRanking;
// Three searches and an answer.
constexpr EnvironmentLimits kLimits{.model_tokens = 64, .turns = 4, .observation_tokens = 512};

constexpr std::string_view kSystem =
    "Name the term that fits a description. To look words up in the dictionary, write <search>words</search>; the best "
    "entries follow. You may search three times. To finish, write <answer>term</answer>.";
constexpr std::string_view kQuestion = "Which {} is described as: {}?";
constexpr std::string_view kObservationBegin = "\n<information>\n";
constexpr std::string_view kObservationEnd = "\n</information>\n";
constexpr std::string_view kNothingFound = "nothing found";

class DictionaryEnvironment : public Environment {
 public:
  DictionaryEnvironment(Dictionary dictionary, std::unique_ptr<DocumentIndex> index, const Sha256Digest& digest)
      : dictionary_(std::move(dictionary)), index_(std::move(index)), digest_(digest) {}

  std::string_view name() const override { return "dictionary"; }
  const Sha256Digest& digest() const override { return digest_; }
  const EnvironmentLimits& limits() const override { return kLimits; }
  std::span<const std::string> stop_strings() const override { return stop_strings_; }

  std::uint64_t task_count(Split split) const override {
    return split == Split::kHeldOut ? dictionary_.held_out : dictionary_.entries.size() - dictionary_.held_out;
  }

  Result<Task> task(Split split, std::uint64_t index) const override {
    FLOTILLA_ASSIGN_OR_RETURN(const DictionaryEntry* entry, entry_of(split, index));
    return Task{split, index, std::string(kSystem), fmt::format(kQuestion, entry->kind, entry->description),
                nlohmann::json{{"answers", entry->answers}}.dump()};
  }

  Result<Transition> step(const Task&, std::span<const std::string> actions, std::uint64_t) const override {
    const std::vector<DictionaryTurn> turns = played(actions);
    const bool over = turns.empty() || turns.size() < actions.size() ||
                      turns.back().kind != DictionaryTurn::Kind::kSearch || turns.size() > kMaxSearches;
    if (over) return Transition{.done = true, .observation = ""};
    FLOTILLA_ASSIGN_OR_RETURN(const auto found, index_->search(turns.back().text, kResults));
    std::string observation(kObservationBegin);
    if (found.empty()) observation += kNothingFound;
    for (std::size_t i = 0; i < found.size(); ++i) {
      const DictionaryEntry& entry = dictionary_.entries[found[i]];
      observation += fmt::format("{}{}: {}", i > 0 ? "\n" : "", entry.title(), entry.definition);
    }
    observation += kObservationEnd;
    return Transition{.done = false, .observation = std::move(observation)};
  }

  Result<Reward> reward(const Task& task, std::span<const std::string> actions) const override {
    FLOTILLA_ASSIGN_OR_RETURN(const std::vector<std::string> answers, private_answers(task));
    const auto is_right = [&](const std::string& text) {
      const std::string given = normalized_answer(text);
      return !given.empty() && std::any_of(answers.begin(), answers.end(), [&](const std::string& answer) {
        return normalized_answer(answer) == given;
      });
    };
    std::size_t searches = 0;
    bool answered = false, right = false, found = false, well_formed = !actions.empty();
    for (const DictionaryTurn& turn : played(actions)) {
      if (turn.kind == DictionaryTurn::Kind::kNone) well_formed = false;
      if (turn.kind == DictionaryTurn::Kind::kAnswer) {
        answered = !turn.text.empty();
        right = is_right(turn.text);
      }
      if (turn.kind != DictionaryTurn::Kind::kSearch || ++searches > kMaxSearches) continue;
      FLOTILLA_ASSIGN_OR_RETURN(const auto documents, index_->search(turn.text, kResults));
      for (const std::uint32_t document : documents) found = found || is_right(dictionary_.entries[document].title());
    }
    Reward reward;
    reward.value = right ? 1 : 0;
    reward.metrics = {{"searches", static_cast<double>(std::min(searches, kMaxSearches))},
                      {"answered", answered ? 1 : 0},
                      {"format", well_formed && answered && searches <= kMaxSearches ? 1 : 0},
                      {"found", found ? 1 : 0}};
    return reward;
  }

  Result<std::vector<std::string>> demonstration(const Task& task, std::uint64_t seed) const override {
    FLOTILLA_ASSIGN_OR_RETURN(const DictionaryEntry* entry, entry_of(task.split, task.index));
    std::vector<std::string> words = words_of(entry->description);
    std::erase_if(words, [](const std::string& word) { return is_function_word(word); });
    PhiloxStream random(seed, task.index * 2 + (task.split == Split::kHeldOut ? 1 : 0));
    shuffle(std::span(words), random);
    words.resize(std::min(words.size(), kDemonstratedWords));
    return std::vector<std::string>{fmt::format("<search>{}</search>", fmt::join(words, " ")),
                                    fmt::format("<answer>{}</answer>", entry->title())};
  }

 private:
  Result<const DictionaryEntry*> entry_of(Split split, std::uint64_t index) const {
    if (index >= task_count(split)) {
      return not_found(fmt::format("task {} of {} {} tasks", index, task_count(split), split_name(split)));
    }
    return &dictionary_.entries[index + (split == Split::kHeldOut ? task_count(Split::kTrain) : 0)];
  }

  // The turns up to the one that ended the episode.
  static std::vector<DictionaryTurn> played(std::span<const std::string> actions) {
    std::vector<DictionaryTurn> turns;
    for (const std::string& action : actions) {
      turns.push_back(read_dictionary_turn(action));
      if (turns.back().kind != DictionaryTurn::Kind::kSearch || turns.size() > kMaxSearches) break;
    }
    return turns;
  }

  static Result<std::vector<std::string>> private_answers(const Task& task) {
    const auto json = nlohmann::json::parse(task.private_json, nullptr, false);
    if (json.is_object() && json.size() == 1 && json.contains("answers") && json["answers"].is_array()) {
      const auto& answers = json["answers"];
      if (std::all_of(answers.begin(), answers.end(), [](const auto& answer) { return answer.is_string(); })) {
        return answers.get<std::vector<std::string>>();
      }
    }
    return invalid_argument(
        fmt::format("{} task {}: its private part is not {{\"answers\":[texts]}}", split_name(task.split), task.index));
  }

  const Dictionary dictionary_;
  const std::unique_ptr<DocumentIndex> index_;
  const Sha256Digest digest_;
  const std::array<std::string, 2> stop_strings_{std::string(kSearchClose), std::string(kAnswerClose)};
};

Sha256Digest digest_of(ByteSpan artifact) {
  Sha256 hash;
  hash.update_framed("flotilla environment dictionary");
  hash.update_value(kRules);
  hash.update(sha256(artifact).bytes);
  for (const std::string_view text :
       {kSystem, kQuestion, kObservationBegin, kObservationEnd, kNothingFound, kSearchClose, kAnswerClose}) {
    hash.update_framed(text);
  }
  for (const std::string_view word : function_words()) hash.update_framed(word);
  hash.update_value(kRanking.k1);
  hash.update_value(kRanking.b);
  hash.update_value(kRanking.min_normlen);
  hash.update_value(kRanking.title_weight);
  hash.update_value(kResults);
  for (const std::int32_t limit : {kLimits.model_tokens, kLimits.turns, kLimits.observation_tokens}) {
    hash.update_value(limit);
  }
  hash.update_value(std::uint64_t{kMaxSearches});
  hash.update_value(std::uint64_t{kDemonstratedWords});
  return hash.finish();
}

}  // namespace

Result<std::unique_ptr<Environment>> open_dictionary(ByteSpan artifact, const std::filesystem::path& cache) {
  FLOTILLA_ASSIGN_OR_RETURN(Dictionary dictionary, read_dictionary(artifact).with_context("dictionary artifact"));
  std::vector<Document> documents;
  for (const DictionaryEntry& entry : dictionary.entries) documents.push_back({entry.title(), entry.definition});
  FLOTILLA_ASSIGN_OR_RETURN(auto index, DocumentIndex::open(documents, kRanking, cache));
  return std::unique_ptr<Environment>(
      std::make_unique<DictionaryEnvironment>(std::move(dictionary), std::move(index), digest_of(artifact)));
}

}  // namespace flotilla
