#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

#include "config/config.h"
#include "config/weight_swap.h"

// The settings of a run. Each field is declared once, in its struct's visit(): that line gives its name, unit, range
// and help to the parser, the printer, the command line and docs/configuration.md. To add one, write the member with
// its default and its line in visit(), then write the page again (README.md in this folder). Defaults are those of the
// published run wherever it states a figure.
namespace flotilla {

enum class LearnerMode { kAsync, kSequential };
template <>
inline constexpr std::array<std::string_view, 2> enum_names<LearnerMode> = {"async", "sequential"};

enum class ForwardPass { kMaster, kGrid };
template <>
inline constexpr std::array<std::string_view, 2> enum_names<ForwardPass> = {"master", "grid"};

enum class TruncatedEpisodes { kKeep, kMask };
template <>
inline constexpr std::array<std::string_view, 2> enum_names<TruncatedEpisodes> = {"keep", "mask"};

// How a worker treats the other programs of its machine.
enum class Politeness { kPolite, kNormal, kGreedy };
template <>
inline constexpr std::array<std::string_view, 3> enum_names<Politeness> = {"polite", "normal", "greedy"};

struct RunSection {
  std::string name;
  std::string hub;
  std::uint64_t seed = 1;
  std::filesystem::path folder;

  template <class V>
  void visit(V& v) {
    v(name, "name", "OWNER/RUN: names of letters, digits, '.', '_' and '-'");
    v(hub, "hub", "Where the run's objects are: a folder, s3://BUCKET/PREFIX or https://HOST:PORT");
    v(seed, "seed", "", at_least(0), "Fixes tasks, sampling and evaluation");
    v(folder, "folder", "Checkpoints, event log and results of the learner; empty: .flotilla/OWNER/RUN");
  }
};

struct ModelSection {
  std::filesystem::path source;

  template <class V>
  void visit(V& v) {
    v(source, "source", "The starting model: a GGUF file or a Hugging Face folder");
  }
};

struct EnvironmentSection {
  std::string name = "dictionary";
  std::filesystem::path source = "/usr/share/wordnet";

  template <class V>
  void visit(V& v) {
    v(name, "name", "The environment");
    v(source, "source", "What its tasks and documents are made from; for \"dictionary\" WordNet's folder");
  }
};

struct RolloutSection {
  std::int32_t group_size = 8;
  float temperature = 1.0f;
  std::int32_t top_k = 0;
  float top_p = 1.0f;
  WeightSwap swap = WeightSwap::kDrain;
  bool claims = false;

  template <class V>
  void visit(V& v) {
    v(group_size, "group_size", "episodes", between(2, 256), "Episodes in a group");
    v(temperature, "temperature", "", between(0, 10), "Sampling temperature; 0 takes the most likely token");
    v(top_k, "top_k", "tokens", at_least(0), "Sample among the most likely tokens only; 0: all");
    v(top_p, "top_p", "", above(0, 1), "Sample among the most likely tokens of this total probability");
    v(swap, "swap",
      "When a new version's weights are taken: after the groups under way (drain), or under their episodes, whose keys "
      "and values are then computed again (recompute) or kept (keep)");
    v(claims, "claims",
      "Workers claim blocks of 64 tasks, so that none is done twice in a pass over all of them; off: each walks them "
      "from a place of its own, and asks the hub for nothing");
  }
};

struct WarmupSection {
  std::int64_t demonstrations = 0;
  std::int32_t batch = 8;
  double learning_rate = 2e-4;

  template <class V>
  void visit(V& v) {
    v(demonstrations, "demonstrations", "episodes", at_least(0),
      "Demonstrations to imitate, once each, before version 0; 0: no warm-up");
    v(batch, "batch", "episodes", between(1, 4096), "Demonstrations in one optimizer step");
    v(learning_rate, "learning_rate", "", above(0, 1), "AdamW's step size in the warm-up");
  }
};

struct LearnerSection {
  LearnerMode mode = LearnerMode::kAsync;
  ForwardPass forward = ForwardPass::kMaster;
  std::int64_t steps = 0;
  Seconds budget{0};
  std::int32_t batch_groups = 32;
  std::int32_t wanted_groups = 64;
  std::int32_t max_staleness = 3;
  std::int32_t max_reuse = 3;
  std::int32_t publish_every = 4;
  std::int32_t anchor_every = 20;
  std::int32_t checkpoint_every = 5;
  std::int32_t keep_checkpoints = 2;
  std::int32_t micro_batch_tokens = 4096;
  std::int32_t threads = 0;

  template <class V>
  void visit(V& v) {
    v(mode, "mode",
      "Whether generating goes on while the learner trains; sequential: every group of a step comes from exactly the "
      "current version (publish_every and max_reuse become 1, max_staleness 0)");
    v(forward, "forward", "Forward pass: the fp32 masters as they are, or fake-quantised as the fleet runs them");
    v(steps, "steps", "optimizer steps", at_least(0), "The run is finished after this many; 0: no limit");
    v(budget, "budget_seconds", "seconds", at_least(0),
      "The run is finished after this much time of RL, at the nearest end of a step; 0: no limit");
    v(batch_groups, "batch_groups", "groups", between(1, 4096), "Groups in one optimizer step");
    v(wanted_groups, "wanted_groups", "groups", between(0, 65536),
      "How many unused groups beyond one batch the learner asks the fleet for before it tells it to wait; the batch in "
      "training counts as unused until its step ends");
    v(max_staleness, "max_staleness", "versions", between(0, 1000), "A group older than this is not trained on");
    v(max_reuse, "max_reuse", "steps", between(1, 1000), "Optimizer steps that may train on one group");
    v(publish_every, "publish_every", "steps", between(1, 10000), "Optimizer steps between two versions");
    v(anchor_every, "anchor_every", "versions", between(1, 10000), "Every how-manieth version has a full snapshot");
    v(checkpoint_every, "checkpoint_every", "steps", between(1, 10000), "Optimizer steps between two checkpoints");
    v(keep_checkpoints, "keep_checkpoints", "checkpoints", between(1, 1000), "Checkpoints on disk; older ones go");
    v(micro_batch_tokens, "micro_batch_tokens", "tokens", between(64, 1 << 24),
      "Tokens of one forward and backward pass; bounds the learner's memory");
    v(threads, "threads", "", between(0, 1024), "Threads of the learner; 0: one a core");
  }
};

struct RetentionSection {
  Seconds every{600};
  Seconds groups{86400};
  std::int64_t quota_mib = 0;

  template <class V>
  void visit(V& v) {
    v(every, "every_seconds", "seconds", between(0, 1e9),
      "Between two clean-ups of the run's objects on the hub by the learner; 0: never. What goes: "
      "docs/design/retention.md");
    v(groups, "groups_seconds", "seconds", between(0, 1e9),
      "How long groups that are too old to be trained on stay, with the versions that made them, for `flotilla "
      "verify`");
    v(quota_mib, "quota_mib", "MiB", at_least(0),
      "What all objects of the run may have together. The learner cleans up before a write that would pass it, and "
      "waits "
      "with it until there is room; 0: as much as the hub gives");
  }
};

struct OptimizerSection {
  double learning_rate = 1e-6;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double epsilon = 1e-8;
  double weight_decay = 0;
  double clip_norm = 1;

  template <class V>
  void visit(V& v) {
    v(learning_rate, "learning_rate", "", above(0, 1), "AdamW's step size; a small model takes more, up to 2e-5");
    v(beta1, "beta1", "", between(0, 0.999999), "Decay of the mean of the gradients");
    v(beta2, "beta2", "", between(0, 0.999999), "Decay of the mean of the squared gradients");
    v(epsilon, "epsilon", "", above(0, 1), "Added to the root of the mean square");
    v(weight_decay, "weight_decay", "", between(0, 1), "Decoupled weight decay; 0: none");
    v(clip_norm, "clip_norm", "", at_least(0), "The gradient is scaled down to this norm; 0: never");
  }
};

struct LossSection {
  double gate_delta = 0.2;
  double dual_clip = 20;
  double positive_clip = 0;
  double kl = 1e-3;
  std::int32_t token_budget = 0;
  TruncatedEpisodes truncated = TruncatedEpisodes::kKeep;
  bool drop_zero_signal = false;

  template <class V>
  void visit(V& v) {
    v(gate_delta, "gate_delta", "probability", above(0, 1),
      "The gate drops a token whose probability moved further than this and would be pushed on");
    v(dual_clip, "dual_clip", "", at_least(1), "Largest weight of a token with a negative advantage");
    v(positive_clip, "positive_clip", "", at_least(0), "Largest weight of a token with a positive advantage; 0: none");
    v(kl, "kl", "", at_least(0), "Weight of the divergence from version 0 (k3, clamped); 0: none");
    v(token_budget, "token_budget", "tokens", at_least(0),
      "Model tokens an episode that the sum is divided by; 0: the environment's limit");
    v(truncated, "truncated", "Whether episodes that ran out of tokens are trained on or masked");
    v(drop_zero_signal, "drop_zero_signal", "Leave groups whose rewards are all equal out of the batch");
  }
};

struct EvaluationSection {
  std::int32_t questions = 250;
  std::int32_t samples = 2;
  float temperature = 1.0f;
  std::int32_t threads = 0;

  template <class V>
  void visit(V& v) {
    v(questions, "questions", "tasks", between(1, 1000000), "Held-out tasks");
    v(samples, "samples", "episodes", between(1, 1024), "Episodes a task");
    v(temperature, "temperature", "", between(0, 10), "Sampling temperature");
    v(threads, "threads", "", between(0, 1024), "Threads of the engine; 0: one a core");
  }
};

struct WorkerSection {
  std::string operator_id;
  std::int32_t threads = 1;
  std::int32_t sweep_groups = 0;
  bool refill = false;
  Politeness politeness = Politeness::kPolite;
  std::int64_t memory_limit_mib = 0;
  Seconds poll{1};
  std::int32_t upload_queue = 16;

  template <class V>
  void visit(V& v) {
    v(operator_id, "operator", "Who the worker belongs to; empty: the worker itself");
    v(threads, "threads", "", between(1, 1024), "Threads of the engine");
    v(sweep_groups, "sweep_groups", "groups", between(0, 256),
      "Groups that are decoded together; 0: the worker finds out how many finish most episodes an hour");
    v(refill, "refill",
      "Add groups to a sweep in the places of episodes that have ended (needs sweep_groups); with rollout.swap = "
      "\"drain\" until a new version is out, and what began before ends with the older weights");
    v(politeness, "politeness",
      "What it leaves to other programs. polite: idle priority, and a tenth of the time while others use the machine; "
      "normal: low priority, and half the time while the cores do not suffice; greedy: neither. Under memory pressure "
      "each of them sweeps fewer groups");
    v(memory_limit_mib, "memory_limit_mib", "MiB", at_least(0),
      "The worker refuses to start when it would need more; 0: what the machine has available");
    v(poll, "poll_seconds", "seconds", between(0.01, 3600), "Between two looks at the hub while it has nothing to do");
    v(upload_queue, "upload_queue", "groups", between(1, 4096),
      "Finished groups that may wait for upload; a worker with a full queue starts no sweep");
  }

  // A sweep that is refilled says nothing about how many groups are best.
  Status resolve() const;
};

struct DemoSection {
  std::int32_t workers = 2;

  template <class V>
  void visit(V& v) {
    v(workers, "workers", "processes", between(1, 64), "Workers that the demo starts on this machine");
  }
};

// What `flotilla learn` and `flotilla demo` read: run.toml.
struct RunConfig {
  RunSection run;
  ModelSection model;
  EnvironmentSection environment;
  RolloutSection rollout;
  WarmupSection warmup;
  LearnerSection learner;
  RetentionSection retention;
  OptimizerSection optimizer;
  LossSection loss;
  EvaluationSection evaluation;
  WorkerSection worker;
  DemoSection demo;

  template <class V>
  void visit(V& v) {
    v.section(run, "run", "The run");
    v.section(model, "model", "The model");
    v.section(environment, "environment", "The tasks");
    v.section(rollout, "rollout", "How every worker of the run samples");
    v.section(warmup, "warmup", "Supervised warm-up on the environment's demonstrations, before version 0");
    v.section(learner, "learner", "The learner's loop");
    v.section(retention, "retention", "What the run keeps on its hub");
    v.section(optimizer, "optimizer", "AdamW on the fp32 masters, in RL");
    v.section(loss, "loss", "The loss of RL");
    v.section(evaluation, "evaluation", "Evaluation on held-out tasks");
    v.section(worker, "worker", "A worker; in run.toml, those that the demo starts");
    v.section(demo, "demo", "What `flotilla demo` starts beside the learner");
  }

  // Requires the name, the hub and the model; makes a sequential run sequential; names the folder.
  Status resolve();
};

// What `flotilla work` reads.
struct WorkConfig {
  WorkerSection worker;

  template <class V>
  void visit(V& v) {
    v.section(worker, "worker", "A worker");
  }
  Status resolve() const { return worker.resolve(); }
};

// "OWNER/RUN" as the hub's keys allow it.
Status check_run_name(std::string_view name);

// The whole of docs/configuration.md.
std::string configuration_page();

}  // namespace flotilla
