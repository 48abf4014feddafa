#include <fmt/format.h>
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstdio>
#include <functional>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "base/files.h"
#include "base/median.h"
#include "base/thread_pool.h"
#include "benchmark/engine_benchmark.h"
#include "benchmark/machine_limits.h"
#include "benchmark/swap_benchmark.h"
#include "cli/bench_figures.h"
#include "cli/bench_model.h"
#include "cli/bench_process.h"
#include "cli/bench_sync.h"
#include "cli/commands.h"
#include "cli/worker_allocator.h"
#include "telemetry/progress_line.h"

namespace flotilla {
namespace {

using nlohmann::ordered_json;

struct BenchOptions {
  std::string model = "smollm2-135m";
  std::vector<int> threads;
  std::vector<int> sequences = {1, 8, 32, 64};
  std::vector<int> tokens = {128, 512};
  bool separate_prompts = false;
  bool two_bytes = false;
  int repeat = 5;
  std::string isa;
  std::string json;
};

Result<Isa> isa_of(const std::string& name) {
  if (name.empty()) return Isa::kAuto;
  std::string known;
  for (const Isa isa : supported_isas()) {
    if (isa_name(isa) == name) return isa;
    known += fmt::format("{}{}", known.empty() ? "" : ", ", isa_name(isa));
  }
  return invalid_argument(fmt::format("--isa {}: this machine has {}", name, known));
}

// The figures so far, as a table on the terminal and as JSON.
class Report {
 public:
  explicit Report(const BenchOptions& options) : options_(options) {}

  void limits(const MachineLimits& limits) {
    const auto add = [&](const char* name, double value, const char* unit) {
      line(fmt::format("{}, {} threads, {}", name, limits.threads, isa_name(limits.isa)), value, unit, {}, "");
    };
    add("int8 dot products", limits.int8_operations, "Gop/s");
    add("fp32 multiply-adds", limits.fp32_operations, "Gop/s");
    add("reading memory", limits.read_bytes, "GB/s");
    if (limits.threads > 1) add("from one thread to another", 1e9 * limits.handoff_seconds, "ns");
  }

  void speeds(const std::string& figure, const std::vector<Speed>& speeds, const MachineLimits& limits) {
    std::vector<double> samples, shares, int8_shares;
    for (const Speed& speed : speeds) {
      samples.push_back(speed.tokens_per_second);
      shares.push_back(speed.roofline_share());
      int8_shares.push_back(speed.int8_share());
    }
    const double share = median(shares), int8_share = median(int8_shares);
    line(figure, median(samples), "tokens/s", samples,
         fmt::format("{:.0f} % of the roofline, {:.0f} % of the int8 peak", 100 * share, 100 * int8_share),
         {{"roofline_share", share}, {"int8_share", int8_share}, {"handoff_ns", 1e9 * limits.handoff_seconds}});
  }

  void milliseconds(const std::string& figure, const std::vector<double>& samples, const std::string& remark = {}) {
    line(figure, median(samples), "ms", samples, remark);
  }

  Status write() const {
    if (options_.json.empty()) return ok_status();
    return write_file_atomically(options_.json, figures_.dump(2) + "\n");
  }

 private:
  void line(const std::string& figure, double value, const char* unit, const std::vector<double>& samples,
            const std::string& remark, const ordered_json& more = ordered_json::object()) {
    fmt::print("{:<60} {:>9.1f} {:<8} {}\n", figure, value, unit, remark);
    std::fflush(stdout);
    ordered_json entry = {{"figure", figure}, {"value", value}, {"unit", unit}};
    entry.update(more);
    if (!samples.empty()) entry["samples"] = samples;
    entry["machine"] = machine_name();
    entry["command"] = command_;
    figures_.push_back(std::move(entry));
  }

  const BenchOptions& options_;
  const std::string command_ = command_line();
  ordered_json figures_ = ordered_json::array();
};

using Measure = std::function<Result<Speed>(Engine& engine, const MachineLimits& limits)>;

struct Figure {
  std::string name;
  std::int64_t kv_blocks = 0;
  Measure measure;
};

std::vector<int> thread_counts(const BenchOptions& options) {
  if (!options.threads.empty()) return options.threads;
  const int cores = core_count();
  return cores == 1 ? std::vector<int>{1} : std::vector<int>{1, cores};
}

Status bench_limits(const BenchOptions& options) {
  FLOTILLA_ASSIGN_OR_RETURN(const Isa isa, isa_of(options.isa));
  Report report(options);
  for (const int threads : thread_counts(options)) {
    FLOTILLA_ASSIGN_OR_RETURN(const MachineLimits limits, measure_limits(threads, isa));
    report.limits(limits);
  }
  return report.write();
}

Status bench_engine(const BenchOptions& options, const std::vector<Figure>& figures) {
  FLOTILLA_ASSIGN_OR_RETURN(const Isa isa, isa_of(options.isa));
  ProgressLine progress(std::cerr, inspect_terminal(2));
  progress.update("preparing " + options.model);
  FLOTILLA_ASSIGN_OR_RETURN(const RandomModel model, bench_model(options.model));
  progress.finish();
  Report report(options);
  for (const int threads : thread_counts(options)) {
    FLOTILLA_ASSIGN_OR_RETURN(MachineLimits limits, measure_limits(threads, isa));
    if (options.two_bytes) limits.int8_operations /= 2;  // every product is two
    EngineOptions engine_options{.threads = threads, .isa = isa};
    engine_options.activations = options.two_bytes ? ActivationWidth::kTwo : ActivationWidth::kOne;
    for (const Figure& figure : figures)
      engine_options.kv_blocks = std::max(engine_options.kv_blocks, figure.kv_blocks);
    FLOTILLA_ASSIGN_OR_RETURN(const auto engine, Engine::create(model.description, engine_options));
    FLOTILLA_RETURN_IF_ERROR(engine->load(model.state));
    for (const Figure& figure : figures) {
      std::vector<Speed> speeds;
      for (int i = 0; i <= options.repeat; ++i) {
        progress.update(fmt::format("{}, {} threads: {}/{}", figure.name, threads, i, options.repeat));
        FLOTILLA_ASSIGN_OR_RETURN(const Speed speed, figure.measure(*engine, limits));
        if (i > 0) speeds.push_back(speed);  // the first touches memory
      }
      progress.finish();
      report.speeds(fmt::format("{}, {}, {} threads, {}{}", options.model, figure.name, threads, isa_name(limits.isa),
                                options.two_bytes ? ", two bytes" : ""),
                    speeds, limits);
    }
  }
  return report.write();
}

Status bench_prefill(const BenchOptions& options) {
  std::vector<Figure> figures;
  for (const int tokens : options.tokens) {
    figures.push_back(
        {fmt::format("prefill {}", tokens), prefill_blocks(tokens),
         [tokens](Engine& engine, const MachineLimits& limits) { return measure_prefill(engine, limits, tokens); }});
  }
  return bench_engine(options, figures);
}

Status bench_decode(const BenchOptions& options) {
  std::vector<Figure> figures;
  for (const int sequences : options.sequences) {
    const DecodeShape shape{.sequences = sequences, .group = options.separate_prompts ? 1 : DecodeShape{}.group};
    figures.push_back({fmt::format("decode {}{}", sequences, options.separate_prompts ? ", separate prompts" : ""),
                       decode_blocks(shape), [shape](Engine& engine, const MachineLimits& limits) {
                         return measure_decode(engine, limits, shape);
                       }});
  }
  return bench_engine(options, figures);
}

Status bench_rollout(const BenchOptions& options) {
  const RolloutShape shape;
  return bench_engine(
      options,
      {{fmt::format("rollout {} x {}", shape.prompts, shape.samples), rollout_blocks(shape),
        [shape](Engine& engine, const MachineLimits& limits) { return measure_rollout(engine, limits, shape); }}});
}

Status bench_swap(const BenchOptions& options) {
  use_worker_allocator();
  FLOTILLA_ASSIGN_OR_RETURN(const Isa isa, isa_of(options.isa));
  ProgressLine progress(std::cerr, inspect_terminal(2));
  progress.update("preparing " + options.model);
  FLOTILLA_ASSIGN_OR_RETURN(const RandomModel model, bench_model(options.model));
  progress.finish();
  Report report(options);
  for (const int threads : thread_counts(options)) {
    FLOTILLA_ASSIGN_OR_RETURN(const auto engine,
                              Engine::create(model.description, {.threads = threads, .isa = isa, .kv_blocks = 1}));
    progress.update(fmt::format("{} versions, {} threads", options.repeat, threads));
    FLOTILLA_ASSIGN_OR_RETURN(const auto times, measure_swaps(*engine, model.state, threads, options.repeat));
    progress.finish();
    std::vector<double> pull, load;
    for (const SwapTime& time : times) {
      pull.push_back(1e3 * time.pull_seconds);
      load.push_back(1e3 * time.load_seconds);
    }
    const std::string what = fmt::format("{} threads, {}", threads, isa_name(engine->isa()));
    report.milliseconds(fmt::format("{}, fetch and check a version, {}", options.model, what), pull);
    report.milliseconds(fmt::format("{}, load it, {}", options.model, what), load,
                        "goal for smollm2-135m: at most 100 ms");
  }
  return report.write();
}

CLI::App* add(CLI::App& parent, Action& action, const char* name, const char* help, const char* example,
              const std::shared_ptr<BenchOptions>& options, Status (*run)(const BenchOptions&)) {
  CLI::App* command = parent.add_subcommand(name, help);
  command->footer(fmt::format("Example:\n  flotilla bench {} {}", name, example));
  command->add_option("--threads", options->threads, "Thread counts, with commas; default 1 and all cores")
      ->delimiter(',')
      ->check(CLI::Range(1, 256));
  command->add_option("--isa", options->isa, "one of those that `flotilla version` lists; default the best of them");
  command->add_option("--json", options->json, "Also write the figures to this file");
  command->callback([&action, options, run] { action = [options, run] { return run(*options); }; });
  return command;
}

void add_model_options(CLI::App* command, BenchOptions& options) {
  command->add_option("--model", options.model, "smollm2-135m or qwen2.5-0.5b (random weights), or a model file")
      ->capture_default_str();
  command->add_option("--repeat", options.repeat, "Measurements of each figure; the median is printed")
      ->capture_default_str()
      ->check(CLI::Range(1, 1000));
}

void add_engine_options(CLI::App* command, BenchOptions& options) {
  add_model_options(command, options);
  command->add_flag("--two-byte", options.two_bytes,
                    "Activations of two bytes (half the speed of a machine's int8 peak)");
}

}  // namespace

void add_bench_command(CLI::App& app, Action& action) {
  CLI::App* bench = app.add_subcommand(
      "bench", "Measure this machine and the engine on it, each figure with its share of the roofline");
  bench->require_subcommand(1);
  bench->footer(
      "Examples:\n"
      "  flotilla bench limits\n"
      "  flotilla bench decode --sequences 1,32 --threads 2\n"
      "  flotilla bench rollout --model qwen2.5-0.5b --json rollout.json");
  auto options = std::make_shared<BenchOptions>();
  add(*bench, action, "limits", "Peaks of int8 dot products, fp32 multiply-adds, reading memory and handing on",
      "--threads 1,2", options, bench_limits);
  CLI::App* prefill =
      add(*bench, action, "prefill", "One prompt", "--tokens 128,512 --model qwen2.5-0.5b", options, bench_prefill);
  add_engine_options(prefill, *options);
  prefill->add_option("--tokens", options->tokens, "Prompt lengths, with commas")
      ->delimiter(',')
      ->capture_default_str()
      ->check(CLI::Range(1, 1 << 20));
  CLI::App* decode = add(*bench, action, "decode", "Sequences that decode together; groups of 8 share a prompt of 128",
                         "--sequences 1,32 --threads 2", options, bench_decode);
  add_engine_options(decode, *options);
  decode->add_option("--sequences", options->sequences, "Batch sizes, with commas")
      ->delimiter(',')
      ->capture_default_str()
      ->check(CLI::Range(1, 4096));
  decode->add_flag("--separate-prompts", options->separate_prompts, "No prompt is shared");
  CLI::App* rollout =
      add(*bench, action, "rollout", "8 prompts x 8 samples, prompt 128, 32 to 96 tokens each, prompts included",
          "--json rollout.json", options, bench_rollout);
  add_engine_options(rollout, *options);
  CLI::App* swap =
      add(*bench, action, "swap", "A new version at a running worker: fetching and checking it, loading it",
          "--threads 1,2", options, bench_swap);
  add_model_options(swap, *options);
  add_bench_start(*bench, action);
  add_bench_memory(*bench, action);
  add_bench_sync(*bench, action);
}

}  // namespace flotilla
