#include <unistd.h>

#include <CLI/CLI.hpp>

#include <cerrno>
#include <memory>
#include <string>
#include <vector>

#include "cli/child_process.h"
#include "cli/commands.h"
#include "cli/run_address.h"

namespace flotilla {
namespace {

struct LearnOptions {
  std::string run;
  std::vector<std::string> rest;
};

// Replaces this program with flotilla-learner, which alone links libtorch.
Status learn(const LearnOptions& options) {
  const std::string program = (program_folder() / "flotilla-learner").string();
  std::vector<std::string> command{program};
  if (!options.run.empty()) {
    FLOTILLA_ASSIGN_OR_RETURN(const RunAddress address, RunAddress::parse(options.run));
    command.insert(command.end(), {"--run.hub", address.hub, "--run.name", address.owner + "/" + address.run});
  }
  command.insert(command.end(), options.rest.begin(), options.rest.end());
  std::vector<char*> arguments;
  for (const std::string& part : command) arguments.push_back(const_cast<char*>(part.c_str()));
  arguments.push_back(nullptr);
  ::execv(program.c_str(), arguments.data());
  return errno_status(errno, "start " + program + " (the learner is built with FLOTILLA_LEARNER=ON)");
}

}  // namespace

void add_learn_command(CLI::App& app, Action& action) {
  CLI::App* command =
      app.add_subcommand("learn", "Train: warm up, publish weights to a hub, learn from what workers send");
  auto options = std::make_shared<LearnOptions>();
  command->add_option("RUN", options->run, "HUB/OWNER/RUN; may stand in the configuration instead ([run] hub, name)");
  command->prefix_command();
  command->footer(
      "Everything after RUN goes to flotilla-learner: --config FILE, --dry-run, and --SECTION.KEY VALUE for any field "
      "of\n"
      "docs/configuration.md. A run that was started before is resumed from its last checkpoint.\n"
      "Examples:\n"
      "  flotilla learn /srv/hub/ada/demo --config configs/demo.toml\n"
      "  flotilla learn /srv/hub/ada/demo --config configs/demo.toml --dry-run\n"
      "  flotilla learn /srv/hub/ada/demo --config configs/demo.toml --learner.mode sequential --learner.steps 20");
  command->callback([&action, command, options] {
    options->rest = command->remaining();
    action = [options] { return learn(*options); };
  });
}

}  // namespace flotilla
