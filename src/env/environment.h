#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/hashing.h"
#include "base/status.h"

namespace flotilla {

enum class Split { kTrain, kHeldOut };
std::string_view split_name(Split split);

// One task. The public part is what a worker and the model may see; the private part is what the reward needs.
struct Task {
  Split split = Split::kTrain;
  std::uint64_t index = 0;   // within its split
  std::string system;        // system message
  std::string question;      // user message
  std::string private_json;  // e.g. {"answers":["..."]}
};

struct EnvironmentLimits {
  std::int32_t model_tokens = 64;         // an episode: tokens that the model may write in all
  std::int32_t turns = 4;                 // an episode: turns of the model
  std::int32_t observation_tokens = 512;  // one observation, cut after this many
};

// What follows the model's turn.
struct Transition {
  bool done = false;
  std::string observation;  // appended to the assistant's text; empty when done
};

struct Reward {
  double value = 0;
  std::map<std::string, double> metrics;  // "searches", "answered", ...
};

// The rules of a task. A pure function of task, actions and seed: no state between calls, so that anyone can replay an
// episode. Thread safe after creation. Actions are what the model wrote, a string a turn, oldest first; never more.
class Environment {
 public:
  virtual ~Environment() = default;
  virtual std::string_view name() const = 0;
  // Covers documents, tasks, prompts, rules and ranking parameters.
  virtual const Sha256Digest& digest() const = 0;
  virtual const EnvironmentLimits& limits() const = 0;
  // A turn ends when the model's text contains one of these; the token that completes it stays whole.
  virtual std::span<const std::string> stop_strings() const = 0;

  virtual std::uint64_t task_count(Split split) const = 0;
  virtual Result<Task> task(Split split, std::uint64_t index) const = 0;
  // A failed tool is an observation, not an error; an error means that the environment itself is broken.
  virtual Result<Transition> step(const Task& task, std::span<const std::string> actions, std::uint64_t seed) const = 0;
  // The reward of a finished (or cut off) episode, from the model's own text only.
  virtual Result<Reward> reward(const Task& task, std::span<const std::string> actions) const = 0;

  // A demonstration for the supervised warm-up: the model's text of each turn. not_found when the environment has none.
  virtual Result<std::vector<std::string>> demonstration(const Task& task, std::uint64_t seed) const = 0;
};

// What an environment is made of, as it travels to workers: documents and tasks; the search index is built locally.
// `artifact` is the file's bytes; `cache` a folder for what is built from it (made if missing, safe to share).
Result<std::unique_ptr<Environment>> open_environment(std::string_view name, ByteSpan artifact,
                                                      const std::filesystem::path& cache);
// Makes the artifact from what is installed here. For "dictionary": WordNet's folder, /usr/share/wordnet by default.
Result<Bytes> build_environment_artifact(std::string_view name, const std::filesystem::path& source);

}  // namespace flotilla
