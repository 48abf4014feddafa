#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "cli/commands.h"
#include "cli/demo_run.h"
#include "cli/stop_signals.h"

namespace flotilla {
namespace {

struct DemoOptions {
  std::string out = "out/demo";
  std::vector<std::string> overrides;
};

Status demo(const DemoOptions& options) {
  StopSignals signals;
  const auto begin = system_clock().monotonic();
  FLOTILLA_ASSIGN_OR_RETURN(const DemoRun run, prepare_demo(options.out, options.overrides));
  FLOTILLA_ASSIGN_OR_RETURN(const auto store, open_hub(run.address, true));
  FLOTILLA_ASSIGN_OR_RETURN(const Version first, run_demo_fleet(run, signals.token()));
  FLOTILLA_ASSIGN_OR_RETURN(const DemoResult result, evaluate_demo(*store, run, first, signals.token()));
  const double seconds = std::chrono::duration<double>(system_clock().monotonic() - begin).count();
  FLOTILLA_ASSIGN_OR_RETURN(const bool rose, report_demo(*store, run, result, seconds));
  if (!rose) return internal_error("held-out pass@1 did not rise by more than 2.5 standard errors");
  return ok_status();
}

}  // namespace

void add_demo_command(CLI::App& app, Action& action) {
  CLI::App* command = app.add_subcommand(
      "demo", "The main job on this machine: a learner and two workers train a small model to search a dictionary");
  auto options = std::make_shared<DemoOptions>();
  command->add_option("--out", options->out, "Folder for runs of the demo; each gets a subfolder")
      ->capture_default_str();
  command->allow_extras();
  command->footer(
      "Takes about 15 minutes on two cores: a supervised warm-up, 8 minutes of reinforcement learning, and an "
      "evaluation of\n"
      "version 0 and the last version on the same held-out questions. --SECTION.KEY VALUE changes a field of\n"
      "docs/configuration.md. Exits with 1 when pass@1 did not rise by more than 2.5 standard errors.\n"
      "Examples:\n"
      "  flotilla demo\n"
      "  flotilla demo --learner.budget_seconds 1200 --evaluation.questions 500");
  command->callback([&action, command, options] {
    options->overrides = command->remaining();
    action = [options] { return demo(*options); };
  });
}

}  // namespace flotilla
