// Speed of the learner's optimizer step on SmolLM2-135M's shapes with random weights, beside the product of one of its
// largest matrices.
//
//   learner_bench [--json FILE] [--threads N] [--steps N]
//
// A step trains on 4 groups x 8 episodes as the dictionary task has them: prompts of 60 tokens, episodes of 120 to 150,
// of which 20 to 30 are the model's. Tokens are those of the episodes, each with its prompt, whatever is shared. The
// best of all steps counts, wall clock; "a core" is per second of processor time, which stays meaningful on a busy
// machine.
#include <algorithm>
#include <ctime>
#include <fstream>

#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/rand.h>
#include <fmt/format.h>
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "base/clock.h"
#include "base/philox.h"
#include "base/thread_pool.h"
#include "learn/advantages.h"
#include "learn/torch/bench/random_group.h"
#include "learn/torch/torch_trainer.h"
#include "model/published_sizes.h"

namespace flotilla {
namespace {

constexpr int kProducts = 30;  // times the product is measured
constexpr int kGroups = 4;

ModelWeights random_weights(const ModelDescription& description) {
  ModelWeights weights{description, {}};
  PhiloxStream random(1, 0);
  for (const TensorSpec& spec : description.tensors) {
    std::vector<float>& tensor = weights.tensors.emplace_back(spec.size(), 1.0f);
    if (spec.kind == TensorKind::kVector) continue;
    for (float& value : tensor) value = 0.04f * (static_cast<float>(random.next_u32()) * 0x1p-31f - 1.0f);
  }
  return weights;
}

double processor_seconds() {
  timespec now{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

struct Timing {
  double wall = 1e30;
  double processor = 1e30;
};

template <typename Work>
Timing best_of(int times, const Work& work) {
  Timing best;
  for (int i = 0; i < times; ++i) {
    const double processor = processor_seconds();
    const auto begin = system_clock().monotonic();
    work();
    best.wall = std::min(best.wall, static_cast<double>((system_clock().monotonic() - begin).count()) * 1e-9);
    best.processor = std::min(best.processor, processor_seconds() - processor);
  }
  return best;
}

std::string machine() {
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);) {
    if (line.starts_with("model name")) return line.substr(line.find(':') + 2);
  }
  return "unknown";
}

int run(const std::string& json, int threads, int steps, const std::string& command) {
  const ModelDescription description = describe_model(smollm2_135m()).value();
  const ModelWeights weights = random_weights(description);
  nlohmann::ordered_json figures = nlohmann::ordered_json::array();
  const auto report = [&](const std::string& figure, double value, const char* unit, double against) {
    fmt::print("{:<64} {:>9.1f} {}\n", figure, value, unit);
    std::fflush(stdout);
    figures.push_back({{"figure", figure},
                       {"value", value},
                       {"unit", unit},
                       {"against", against > 0 ? nlohmann::ordered_json("product of matrices") : nullptr},
                       {"ratio", against > 0 ? nlohmann::ordered_json(value / against) : nullptr},
                       {"goal", nullptr},
                       {"met", nullptr},
                       {"samples", figure.starts_with("product") ? kProducts : steps},
                       {"machine", machine()},
                       {"command", command}});
  };

  std::vector<Group> groups;
  std::vector<const Group*> pointers;
  std::vector<std::vector<float>> values;
  double tokens = 0;
  for (int g = 0; g < kGroups; ++g)
    groups.push_back(random_group(static_cast<std::uint64_t>(g), description.vocabulary));
  for (const Group& group : groups) {
    std::vector<double> rewards;
    for (const Episode& episode : group.episodes) {
      rewards.push_back(episode.reward);
      tokens += static_cast<double>(episode.tokens.size());
    }
    pointers.push_back(&group);
    values.push_back(advantages(rewards));
  }

  double peak_core = 0;
  {
    at::set_num_threads(threads);
    const at::NoGradGuard no_grad;
    const at::Tensor x = at::rand({1024, 576}), w = at::rand({3072, 576});
    const Timing best = best_of(kProducts, [&] { at::mm(x, w.t()); });
    const double operations = 2.0 * 1024 * 576 * 3072 / 1e9;
    peak_core = operations / best.processor;
    report("product [1024, 576] x [576, 3072]", operations / best.wall, "GFLOP/s", 0);
    report("product [1024, 576] x [576, 3072], a core", peak_core, "GFLOP/s", 0);
  }

  struct Case {
    const char* name;
    bool share, grid;
  };
  for (const Case& one : {Case{"shared prompt", true, false}, Case{"episodes alone", false, false},
                          Case{"shared prompt, grid forward", true, true}}) {
    auto trainer =
        make_torch_trainer(description, {.threads = threads, .grid_forward = one.grid, .share_prompt = one.share})
            .value();
    FLOTILLA_CHECK(trainer->set_masters(weights).ok());
    if (one.grid) trainer->set_grid(std::make_shared<const GridState>(make_grid(weights).value()));
    PolicyStepReport last;
    const PolicyStepOptions options{.loss = {}, .denominator = 2048};
    const Timing best = best_of(steps, [&] { last = trainer->policy_step(pointers, values, options, {}, {}).value(); });
    // Forward and backward are three products with each block's matrices a token, and with the head a target.
    const double head = static_cast<double>(description.vocabulary) * description.hidden;
    const double operations =
        6.0 *
        ((static_cast<double>(description.parameters()) - head) * static_cast<double>(last.computed) +
         head * static_cast<double>(last.tokens)) /
        1e9;
    report(fmt::format("step, {}: tokens a second", one.name), tokens / best.wall, "tokens/s", 0);
    report(fmt::format("step, {}: tokens a second, a core", one.name), tokens / best.processor, "tokens/s", 0);
    report(fmt::format("step, {}: seconds", one.name), best.wall, "s", 0);
    report(fmt::format("step, {}: matrix work, a core", one.name), operations / best.processor, "GFLOP/s", peak_core);
  }
  if (json.empty()) return 0;
  std::ofstream file(json);
  file << figures.dump(2) << "\n";
  if (file.flush()) return 0;
  fmt::print(stderr, "learner_bench: cannot write {}\n", json);
  return 1;
}

}  // namespace
}  // namespace flotilla

int main(int argc, char** argv) {
  CLI::App app("The learner's optimizer step beside libtorch's matrix products");
  std::string json, command = "learner_bench";
  int threads = flotilla::core_count(), steps = 3;
  app.add_option("--json", json, "Write the figures to this file");
  app.add_option("--threads", threads, "Threads")->check(CLI::Range(1, 1024))->capture_default_str();
  app.add_option("--steps", steps, "Times a step is measured")->check(CLI::Range(1, 1000))->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  for (int i = 1; i < argc; ++i) command += std::string(" ") + argv[i];
  return flotilla::run(json, threads, steps, command);
}
