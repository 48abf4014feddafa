#include "cli/bench_sync.h"

#include <fmt/format.h>
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <iostream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/files.h"
#include "base/median.h"
#include "base/thread_pool.h"
#include "base/user_folders.h"
#include "benchmark/sync_benchmark.h"
#include "cli/bench_figures.h"
#include "cli/bench_model.h"
#include "cli/run_address.h"
#include "rollout/run_assets.h"
#include "sync/subscriber.h"
#include "telemetry/progress_line.h"

namespace flotilla {
namespace {

using nlohmann::ordered_json;

constexpr int kGapsLevel = 19;  // of zstd
constexpr int kXorLevel = 3;    // as frameworks have it that ship the XOR of two versions

struct SyncOptions {
  std::string run;
  std::string model = "smollm2-135m";
  std::vector<double> changed = {0.05, 0.1, 0.5, 1, 2, 10};  // percent
  std::vector<int> threads = {1};
  int repeat = 5;
  std::string json;
  std::string gaps;
};

// One delta after the other, as lines and as entries of a file.
class SyncReport {
 public:
  SyncReport(const SyncOptions& options, const ModelDescription& description)
      : options_(options), description_(description) {
    for (const TensorSpec& spec : description.tensors) {
      const bool matrix = spec.kind == TensorKind::kMatrix;
      const std::int64_t bytes = matrix ? spec.size() + 2 * spec.rows * groups_of(spec.cols) : 2 * spec.size();
      largest_ = std::max(largest_, bytes);
      int8_bytes_ += bytes;
    }
  }

  // Returns the history of `after`.
  Result<DeltaHistory> measure(const std::string& name, const GridState& before, const DeltaHistory& history,
                               const GridState& after) {
    progress_.update(fmt::format("{}: the codec", name));
    FLOTILLA_ASSIGN_OR_RETURN(DeltaCost cost,
                              measure_delta(description_, before, history, after, options_.threads, options_.repeat));
    progress_.update(fmt::format("{}: zstd", name));
    const Bytes gaps = plain_gaps(before, after);
    const auto compressed = [](ByteSpan bytes, int level) {
      const CompressorCost cost = measure_zstd(bytes, level);
      return ordered_json{{"level", level}, {"bytes", cost.bytes}, {"seconds", cost.seconds}};
    };
    const EncodedDelta& delta = cost.delta;
    const double bound = memoryless_bytes(delta.changed, delta.total);
    ordered_json entry = {{"figure", name},
                          {"value", delta.bytes.size()},
                          {"unit", "bytes"},
                          {"changed", delta.changed},
                          {"total", delta.total},
                          {"rescaled_groups", delta.rescaled_groups},
                          {"bound_bytes", bound},
                          {"int8_bytes", int8_bytes_},
                          {"bf16_bytes", 2 * delta.total},
                          {"largest_tensor_bytes", largest_},
                          {"encode_peak_bytes", cost.encode_peak_bytes},
                          {"apply_peak_bytes", cost.apply_peak_bytes},
                          {"gaps_bytes", gaps.size()},
                          {"gaps_zstd", compressed(gaps, kGapsLevel)},
                          {"xor_zstd", compressed(exclusive_or(before, after), kXorLevel)},
                          {"machine", machine_name()},
                          {"command", command_line()}};
    for (const DeltaSpeed& speed : cost.speeds) {
      entry["speeds"].push_back({{"threads", speed.threads},
                                 {"encode_seconds", speed.encode_seconds},
                                 {"apply_seconds", speed.apply_seconds}});
    }
    if (!options_.gaps.empty()) {
      const auto path = std::filesystem::path(options_.gaps) / fmt::format("{}.gaps", entries_.size());
      FLOTILLA_RETURN_IF_ERROR(write_file_atomically(path, ByteSpan(gaps)));
    }
    entries_.push_back(std::move(entry));

    const auto speed = [&](const std::vector<double>& seconds) {
      return 1e-6 * static_cast<double>(delta.total) / median(seconds);
    };
    const auto bytes = static_cast<double>(delta.bytes.size());
    progress_.finish();
    fmt::print("{:<24} {:>10} bytes {:>7.3f} of the bound {:>7.0f} encode {:>7.0f} apply, MB/s\n", name,
               delta.bytes.size(), bytes / bound, speed(cost.speeds[0].encode_seconds),
               speed(cost.speeds[0].apply_seconds));
    std::fflush(stdout);
    return std::move(cost.delta.history);
  }

  ProgressLine& progress() { return progress_; }

  Status write() const {
    if (options_.json.empty()) return ok_status();
    return write_file_atomically(options_.json, entries_.dump(2) + "\n");
  }

 private:
  const SyncOptions& options_;
  const ModelDescription& description_;
  ProgressLine progress_{std::cerr, inspect_terminal(2)};
  std::int64_t int8_bytes_ = 0, largest_ = 0;
  ordered_json entries_ = ordered_json::array();
};

Status bench_random(const SyncOptions& options) {
  FLOTILLA_ASSIGN_OR_RETURN(const RandomModel model, bench_model(options.model));
  SyncReport report(options, model.description);
  for (const double percent : options.changed) {
    const GridState after = random_changes(model.state, percent / 100, 1);
    FLOTILLA_RETURN_IF_ERROR(
        report.measure(fmt::format("{} % at random", percent), model.state, no_history(model.description), after)
            .status());
  }
  return report.write();
}

// All versions that the run's hub still has, in order, as a learner encodes them.
Status bench_run(const SyncOptions& options) {
  FLOTILLA_ASSIGN_OR_RETURN(const RunAddress address, RunAddress::parse(options.run));
  FLOTILLA_ASSIGN_OR_RETURN(const auto store, open_hub(address));
  const HubLayout layout = address.layout();
  FLOTILLA_ASSIGN_OR_RETURN(const RunModel run, open_run_model(*store, layout, "", user_cache_folder()));
  const auto subscriber = Subscriber::create(*store, layout, run.description, run.spec.learner_key, null_event_sink(),
                                             {.threads = core_count()});
  FLOTILLA_ASSIGN_OR_RETURN(const Head head, subscriber->poll());
  SyncReport report(options, run.description);
  std::shared_ptr<const GridState> before;
  DeltaHistory history = no_history(run.description);
  for (std::uint64_t number = 0; number <= head.version.value(); ++number) {
    report.progress().update(fmt::format("version {}: fetching it", number));
    const auto fetched = subscriber->fetch(Version(number));
    if (fetched.status().code() == StatusCode::kNotFound) continue;  // a number that a crash has left out
    FLOTILLA_RETURN_IF_ERROR(fetched.status());
    if (before) {
      FLOTILLA_ASSIGN_OR_RETURN(history,
                                report.measure(fmt::format("version {}", number), *before, history, *fetched->state));
    }
    before = fetched->state;
  }
  return report.write();
}

}  // namespace

void add_bench_sync(CLI::App& bench, Action& action) {
  auto options = std::make_shared<SyncOptions>();
  CLI::App* command = bench.add_subcommand("sync", "Deltas of changes at random, or of a run's versions: bytes, speed");
  command->add_option("RUN", options->run, "HUB/OWNER/RUN; without it: changes at random");
  command->add_option("--model", options->model, "Of changes at random: as for `bench decode`")->capture_default_str();
  command->add_option("--changed", options->changed, "Of changes at random: percentages, with commas")
      ->delimiter(',')
      ->capture_default_str()
      ->check(CLI::Range(0.0, 100.0));
  command->add_option("--threads", options->threads, "Thread counts, with commas")
      ->delimiter(',')
      ->capture_default_str()
      ->check(CLI::Range(1, 256));
  command->add_option("--repeat", options->repeat, "Measurements of each speed; the median is printed")
      ->capture_default_str()
      ->check(CLI::Range(1, 1000));
  command->add_option("--json", options->json, "Also write the figures to this file, with those of zstd");
  command->add_option("--gaps", options->gaps, "A folder for each delta's plain gap coding, for other compressors");
  command->footer("Example:\n  flotilla bench sync out/demo/1/hub/demo/dictionary");
  command->callback([&action, options] {
    action = [options] { return options->run.empty() ? bench_random(*options) : bench_run(*options); };
  });
}

}  // namespace flotilla
