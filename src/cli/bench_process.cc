#include "cli/bench_process.h"

#include <fmt/format.h>
#include <malloc.h>
#include <time.h>
#include <unistd.h>

#include <CLI/CLI.hpp>

#include <algorithm>
#include <memory>
#include <string>

#include "base/clock.h"
#include "base/files.h"
#include "base/thread_pool.h"
#include "base/user_folders.h"
#include "cli/bench_figures.h"
#include "cli/evaluation_subject.h"
#include "cli/run_address.h"
#include "rollout/machine_use.h"
#include "rollout/memory_plan.h"
#include "rollout/run_assets.h"
#include "rollout/sweep.h"
#include "sync/subscriber.h"

namespace flotilla {
namespace {

constexpr double kMiB = 1 << 20;
constexpr double kStartGoalMilliseconds = 1000;
constexpr double kWeightsFactor = 1.08;
constexpr double kBesideMiB = 64;
constexpr const char* kEnvironment = "dictionary";  // for a model file
constexpr const char* kEnvironmentSource = "/usr/share/wordnet";

struct ProcessOptions {
  std::string subject;
  std::int64_t groups = 8;
  std::int32_t samples = 8;
  int threads = 0;  // 0: one a core
  std::string json;

  int engine_threads() const { return threads > 0 ? threads : core_count(); }
};

// Since this process was started, to a hundredth of a second.
Result<double> process_age_milliseconds() {
  FLOTILLA_ASSIGN_OR_RETURN(const std::string text, read_text_file("/proc/self/stat"));
  const auto stat = parse_process_stat(text);
  timespec now{};
  if (!stat || clock_gettime(CLOCK_BOOTTIME, &now) != 0) return unavailable("/proc/self/stat does not say the start");
  const double ticks = static_cast<double>(sysconf(_SC_CLK_TCK));
  return 1e3 * static_cast<double>(now.tv_sec) + 1e-6 * static_cast<double>(now.tv_nsec) -
         1e3 * static_cast<double>(stat->start) / ticks;
}

// The time of each stage, measured from the end of the one before.
class Stages {
 public:
  explicit Stages(BoundedFigure& figure) : figure_(figure), last_(system_clock().monotonic()) {}
  void end(const char* name) {
    const auto now = system_clock().monotonic();
    figure_.parts.emplace_back(name, std::chrono::duration<double, std::milli>(now - last_).count());
    last_ = now;
  }

 private:
  BoundedFigure& figure_;
  std::chrono::nanoseconds last_;
};

Status bench_start(const ProcessOptions& options) {
  BoundedFigure figure{
      .name = "start to first token", .value = 0, .unit = "ms", .goal = kStartGoalMilliseconds, .parts = {}};
  FLOTILLA_ASSIGN_OR_RETURN(const double before, process_age_milliseconds());
  figure.parts.emplace_back("program and command line", before);
  Stages stages(figure);
  FLOTILLA_ASSIGN_OR_RETURN(const RunAddress address, RunAddress::parse(options.subject));
  FLOTILLA_ASSIGN_OR_RETURN(const auto store, open_hub(address));
  const HubLayout layout = address.layout();
  FLOTILLA_ASSIGN_OR_RETURN(const RunAssets assets, open_run_assets(*store, layout, "", user_cache_folder()));
  stages.end("run.json, tokenizer, environment");
  const auto subscriber = Subscriber::create(*store, layout, assets.description, assets.spec.learner_key,
                                             null_event_sink(), {.threads = options.engine_threads()});
  FLOTILLA_ASSIGN_OR_RETURN(const std::optional<NextVersion> pulled, subscriber->pull());
  stages.end("weights: read, check");
  EngineOptions engine_options;
  engine_options.threads = options.engine_threads();
  engine_options.kv_blocks = assets.rules.context / kBlockTokens + 1;
  FLOTILLA_ASSIGN_OR_RETURN(const auto engine, Engine::create(assets.description, engine_options));
  FLOTILLA_RETURN_IF_ERROR(engine->load(pulled->weights));
  stages.end("engine: pack the weights");
  FLOTILLA_ASSIGN_OR_RETURN(const Task task, assets.environment->task(Split::kTrain, 0));
  FLOTILLA_ASSIGN_OR_RETURN(const auto prompt, episode_prompt(*assets.tokenizer, task));
  FLOTILLA_ASSIGN_OR_RETURN(const SequenceId sequence, engine->open());
  const Readout readout{
      .offset = static_cast<std::int32_t>(prompt.size()) - 1, .sampling = {}, .key = {}, .target = std::nullopt};
  const Chunk chunk{sequence, prompt, {&readout, 1}};
  FLOTILLA_RETURN_IF_ERROR(engine->forward({&chunk, 1}).status());
  stages.end("prompt and first token");
  for (const auto& [name, value] : figure.parts) figure.value += value;
  print_figure(figure);
  return write_figure(figure, options.json);
}

// MiB of this process.
struct Resident {
  double all = 0;
  double files = 0;      // program, libraries, mapped files
  double allocated = 0;  // by malloc, in use
};

Result<Resident> resident() {
  FLOTILLA_ASSIGN_OR_RETURN(const std::string status, read_text_file("/proc/self/status"));
  const auto all = number_behind(status, "VmRSS:"), files = number_behind(status, "RssFile:");
  if (!all || !files) return unavailable("/proc/self/status does not say VmRSS and RssFile");
  const struct mallinfo2 heap = mallinfo2();
  return Resident{.all = static_cast<double>(*all) / 1024,
                  .files = static_cast<double>(*files) / 1024,
                  .allocated = static_cast<double>(heap.uordblks + heap.hblkhd) / kMiB};
}

// The moment of a sweep at which it exceeds most, or comes nearest to, what it may hold.
class Watch {
 public:
  Watch(Engine& engine, double weights, double block) : engine_(engine), weights_(weights), block_(block) {}

  Status look() {
    FLOTILLA_ASSIGN_OR_RETURN(const Resident now, resident());
    const double kv = block_ * static_cast<double>(engine_.usage().blocks_used);
    const double goal = kWeightsFactor * weights_ + kv + kBesideMiB;
    if (figure_.parts.empty() || now.all - goal > figure_.value - figure_.goal) {
      figure_.value = now.all;
      figure_.goal = goal;
      figure_.parts = {
          {"packed weights", weights_},
          {"KV blocks in use", kv},
          {"program and mapped files", now.files},
          {"allocated (tokenizer, environment, episodes)", now.allocated},
          {"scratch, free KV blocks, free in the allocator", now.all - weights_ - kv - now.files - now.allocated}};
    }
    engine_.give_back(kSpareKvBytes);  // as a worker does
    return ok_status();
  }
  const BoundedFigure& figure() const { return figure_; }

 private:
  Engine& engine_;
  const double weights_, block_;  // MiB
  BoundedFigure figure_{.name = "resident in a sweep", .value = 0, .unit = "MiB", .goal = 0, .parts = {}};
};

Status bench_memory(const ProcessOptions& options) {
  FLOTILLA_ASSIGN_OR_RETURN(EvaluationSubject subject, open_subject(options.subject, kEnvironment, kEnvironmentSource));
  FLOTILLA_ASSIGN_OR_RETURN(const EpisodeRules rules,
                            make_episode_rules(*subject.environment, *subject.tokenizer, subject.description));
  MemoryDemand demand;
  demand.engine.threads = options.engine_threads();
  demand.groups = options.groups;
  demand.group_size = options.samples;
  const auto task = [&](std::uint64_t i) { return subject.environment->task(Split::kTrain, i); };
  FLOTILLA_ASSIGN_OR_RETURN(demand.prompt_tokens, prompt_tokens_to_plan(rules, task));
  FLOTILLA_ASSIGN_OR_RETURN(const MemoryPlan plan, plan_memory(subject.description, rules, demand, available_memory()));
  const auto bytes = [&](std::int64_t kv_blocks) {
    EngineOptions engine_options = demand.engine;
    engine_options.kv_blocks = kv_blocks;
    return static_cast<double>(Engine::memory_bytes(subject.description, engine_options, 0)) / kMiB;
  };
  demand.engine.kv_blocks = plan.kv_blocks;
  FLOTILLA_ASSIGN_OR_RETURN(const auto engine, Engine::create(subject.description, demand.engine));
  FLOTILLA_RETURN_IF_ERROR(engine->load(*subject.weights));
  subject.weights.reset();
  malloc_trim(0);

  std::vector<SweepItem> items;
  for (std::int64_t i = 0; i < options.groups; ++i) {
    const auto index = static_cast<std::uint64_t>(i);
    FLOTILLA_ASSIGN_OR_RETURN(Task one, task(index));
    items.push_back({.task = std::move(one), .sample_group = index, .episodes = options.samples});
  }
  Watch watch(*engine, bytes(0), bytes(1) - bytes(0));
  Status status;
  const SweepHooks hooks{.on_group = [](const FinishedGroup&) { return ok_status(); },
                         .between_calls =
                             [&] {
                               if (status.ok()) status = watch.look();
                               return options.groups;
                             }};
  FLOTILLA_RETURN_IF_ERROR(run_sweep(*engine, rules, {}, items, hooks).status());
  FLOTILLA_RETURN_IF_ERROR(status);
  print_figure(watch.figure());
  return write_figure(watch.figure(), options.json);
}

CLI::App* add(CLI::App& bench, Action& action, const char* name, const char* help,
              const std::shared_ptr<ProcessOptions>& options, Status (*run)(const ProcessOptions&)) {
  CLI::App* command = bench.add_subcommand(name, help);
  command->add_option("--threads", options->threads, "Threads of the engine; 0: one a core")
      ->capture_default_str()
      ->check(CLI::Range(0, 256));
  command->add_option("--json", options->json, "Also write the figure to this file");
  command->callback([&action, options, run] { action = [options, run] { return run(*options); }; });
  return command;
}

}  // namespace

void add_bench_start(CLI::App& bench, Action& action) {
  auto options = std::make_shared<ProcessOptions>();
  CLI::App* command = add(bench, action, "start", "From the start of this process to the first token, stage by stage",
                          options, bench_start);
  command->add_option("RUN", options->subject, "HUB/OWNER/RUN")->required();
  command->footer("Example:\n  flotilla bench start out/demo/1/hub/demo/dictionary --threads 2");
}

void add_bench_memory(CLI::App& bench, Action& action) {
  auto options = std::make_shared<ProcessOptions>();
  CLI::App* command =
      add(bench, action, "memory", "What this process holds in memory while it sweeps", options, bench_memory);
  command->add_option("SUBJECT", options->subject, "HUB/OWNER/RUN, HUB/OWNER/RUN@VERSION, or a model file or folder")
      ->required();
  command->add_option("--groups", options->groups, "Groups of the sweep")
      ->capture_default_str()
      ->check(CLI::Range(1, 256));
  command->add_option("--samples", options->samples, "Episodes of a group")
      ->capture_default_str()
      ->check(CLI::Range(1, 1024));
  command->footer("Example:\n  flotilla bench memory SmolLM2-135M-Instruct.Q4_1.gguf --groups 8");
}

}  // namespace flotilla
