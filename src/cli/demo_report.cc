#include <fmt/format.h>

#include <algorithm>

#include "base/files.h"
#include "cli/child_process.h"
#include "cli/demo_run.h"
#include "cli/run_events.h"
#include "cli/run_report.h"
#include "telemetry/terminal.h"

namespace flotilla {
namespace {

constexpr double kStandardErrorsRequired = 2.5;

std::string episodes_text(const DemoResult& result) {
  std::string text;
  const std::size_t count = std::min(result.before.examples.size(), result.after.examples.size());
  for (std::size_t i = 0; i < count; ++i) {
    const ExampleEpisode& before = result.before.examples[i];
    const ExampleEpisode& after = result.after.examples[i];
    text += fmt::format("\n{}\n  before (reward {:.0f}): {}\n  after  (reward {:.0f}): {}\n", before.question,
                        before.reward, before.text, after.reward, after.text);
  }
  return text;
}

std::string comparison_table(const DemoResult& result) {
  std::string text = fmt::format("held out         before (version {})   after (version {})   difference\n",
                                 result.first.value(), result.last.value());
  for (const auto& [k, pair] : result.comparison) {
    text += fmt::format("pass@{:<3}      {:9.3f} +- {:.3f}     {:9.3f} +- {:.3f}  {:+9.3f} +- {:.3f}\n", k,
                        pair.before.value, pair.before.standard_error, pair.after.value, pair.after.standard_error,
                        pair.difference.value, pair.difference.standard_error);
  }
  return text;
}

nlohmann::json result_json(const DemoRun& demo, const DemoResult& result, double seconds) {
  const PairedEstimate& one = result.comparison.begin()->second;
  const PairedEstimate& most = result.comparison.rbegin()->second;
  return {{"pass_at_1", {{"before", one.before.value}, {"after", one.after.value}}},
          {"pass_at_k",
           {{"k", result.comparison.rbegin()->first}, {"before", most.before.value}, {"after", most.after.value}}},
          {"standard_error",
           {{"before", one.before.standard_error},
            {"after", one.after.standard_error},
            {"difference", one.difference.standard_error}}},
          {"questions", result.before.questions.size()},
          {"samples", result.before.options.samples},
          {"seconds", seconds},
          {"versions", result.last.value()},
          {"seed", demo.config.run.seed}};
}

}  // namespace

Result<bool> report_demo(ObjectStore& store, const DemoRun& demo, const DemoResult& result, double seconds) {
  RunSummary summary;
  RunEvents events(store, demo.address.layout());
  FLOTILLA_ASSIGN_OR_RETURN(const std::vector<EventRecord> records, events.poll());
  for (const EventRecord& record : records) summary.add(record);

  fmt::print("\nThree held-out questions, answered before and after\n{}\n", episodes_text(result));
  fmt::print("{}\n{}{}{}\n{}", reward_plot(summary, inspect_terminal(1)), training_report(summary),
             weights_report(summary), workers_table(summary), comparison_table(result));
  const PairedEstimate& one = result.comparison.begin()->second;
  const double errors = one.difference.standard_error > 0 ? one.difference.value / one.difference.standard_error : 0;
  fmt::print("\npass@1 {} from {:.1f} % to {:.1f} %: {:.1f} standard errors of the paired difference, in {:.0f} s\n",
             one.difference.value >= 0 ? "rose" : "fell", 100 * one.before.value, 100 * one.after.value, errors,
             seconds);

  FLOTILLA_RETURN_IF_ERROR(
      write_file_atomically(demo.folder / "evaluation.json",
                            comparison_to_json(result.before, result.after, result.comparison).dump(2) + "\n"));
  const auto path = demo.folder / "result.json";
  FLOTILLA_RETURN_IF_ERROR(write_file_atomically(path, result_json(demo, result, seconds).dump(2) + "\n"));
  fmt::print("result: {}\ncheck every group: {} verify --run {}\n", path.string(),
             (program_folder() / "flotilla").string(), demo.address.text());
  return errors > kStandardErrorsRequired;
}

}  // namespace flotilla
