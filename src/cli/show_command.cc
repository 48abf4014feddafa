#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <limits>
#include <memory>
#include <string>

#include "cli/commands.h"
#include "cli/run_address.h"
#include "cli/run_events.h"
#include "cli/run_report.h"
#include "cli/run_summary.h"
#include "sync/head.h"
#include "sync/run_spec.h"
#include "telemetry/terminal.h"

namespace flotilla {
namespace {

struct ShowOptions {
  std::string run;
  std::size_t steps = 10;
};

Status show(const ShowOptions& options) {
  FLOTILLA_ASSIGN_OR_RETURN(const RunAddress address, RunAddress::parse(options.run));
  FLOTILLA_ASSIGN_OR_RETURN(const auto store, open_hub(address));
  FLOTILLA_ASSIGN_OR_RETURN(const Object spec_object,
                            store->get(address.layout().run_spec()).with_context("run " + address.text()));
  FLOTILLA_ASSIGN_OR_RETURN(const RunSpec spec, run_spec_from_json(as_text(spec_object.bytes)));
  fmt::print("run {} on {}: environment {}, groups of {}, learner {}\n", spec.run, address.hub, spec.environment_name,
             spec.group_size, fingerprint(spec.learner_key));
  const auto head_object = store->get(address.layout().head());
  if (head_object.ok()) {
    FLOTILLA_ASSIGN_OR_RETURN(const Head head, head_from_json(as_text(head_object->bytes), spec.learner_key));
    fmt::print("head: version {}, {}, {} more groups wanted\n", head.version.value(), run_state_name(head.state),
               head.wanted);
  } else if (head_object.status().code() == StatusCode::kNotFound) {
    fmt::print("head: no version is published yet\n");
  } else {
    return head_object.status();
  }

  if (spec.claims > 0) {
    FLOTILLA_ASSIGN_OR_RETURN(const auto claims, list_all(*store, address.layout().claims()));
    fmt::print("{}", claims_report(address.layout(), claims));
  }

  RunSummary summary;
  RunEvents events(*store, address.layout());
  FLOTILLA_ASSIGN_OR_RETURN(const std::vector<EventRecord> records, events.poll());
  for (const EventRecord& record : records) summary.add(record);
  for (const std::string& problem : events.take_problems()) fmt::print("event log: {}\n", problem);
  if (summary.steps().empty()) fmt::print("{}\n", progress_text(summary));
  fmt::print("{}{}{}{}{}", reward_plot(summary, inspect_terminal(1)), steps_table(summary, options.steps),
             workers_table(summary), weights_report(summary), training_report(summary));
  if (summary.finished() == "leave") {
    fmt::print("the learner has left; flotilla learn goes on with the run\n");
  } else if (summary.finished()) {
    fmt::print("finished: {}\n", *summary.finished());
  }
  return ok_status();
}

}  // namespace

void add_show_command(CLI::App& app, Action& action) {
  CLI::App* command =
      app.add_subcommand("show", "How a run stands: versions, steps, workers, weights, staleness and reuse");
  auto options = std::make_shared<ShowOptions>();
  command->add_option("RUN", options->run, "HUB/OWNER/RUN")->required();
  command->add_option("--steps", options->steps, "How many of the last optimizer steps to list")
      ->capture_default_str()
      ->check(CLI::Range(std::int64_t{0}, std::numeric_limits<std::int64_t>::max()));
  command->footer("Example:\n  flotilla show out/demo/1/hub/demo/dictionary");
  command->callback([&action, options] { action = [options] { return show(*options); }; });
}

}  // namespace flotilla
