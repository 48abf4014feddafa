#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <filesystem>
#include <memory>
#include <string>

#include "cli/commands.h"
#include "cli/learner_folder.h"
#include "cli/run_address.h"

namespace flotilla {
namespace {

struct StopOptions {
  std::string run;
  std::string folder;
  bool leave = false;
};

Status stop(const StopOptions& options) {
  FLOTILLA_ASSIGN_OR_RETURN(const RunAddress address, RunAddress::parse(options.run));
  FLOTILLA_ASSIGN_OR_RETURN(const std::filesystem::path folder, learner_folder(address, options.folder));
  if (const Status asked = ask_learner(folder, options.leave ? "leave" : "stop"); !asked.ok()) {
    return asked.with_context(fmt::format("no learner of {} runs in {}; flotilla show tells how the run stands",
                                          address.text(), folder.string()));
  }
  fmt::print("{}: the learner {}\n", address.text(),
             options.leave
                 ? "writes a checkpoint and leaves; flotilla learn goes on with the run"
                 : "finishes the run: it publishes, tells the fleet, and ends (while the hub is away it keeps "
                   "trying; --leave ends it)");
  return ok_status();
}

}  // namespace

void add_stop_command(CLI::App& app, Action& action) {
  CLI::App* command = app.add_subcommand("stop", "Ask the learner of a run on this machine to finish it");
  auto options = std::make_shared<StopOptions>();
  command->add_option("RUN", options->run, "HUB/OWNER/RUN")->required();
  command->add_option("--folder", options->folder,
                      "The learner's folder ([run] folder); default: of the learner last started for this run");
  command->add_flag("--leave", options->leave, "Only end the process: the run may go on later");
  command->footer("Example:\n  flotilla stop /srv/hub/ada/demo");
  command->callback([&action, options] { action = [options] { return stop(*options); }; });
}

}  // namespace flotilla
