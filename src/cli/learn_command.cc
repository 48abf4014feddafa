#include <unistd.h>

#include <CLI/CLI.hpp>

#include <cerrno>
#include <string>
#include <vector>

#include "cli/child_process.h"
#include "cli/commands.h"
#include "cli/learner_arguments.h"

namespace flotilla {
namespace {

// Replaces this program with flotilla-learner, which alone links libtorch.
Status learn(const std::vector<std::string>& given) {
  FLOTILLA_ASSIGN_OR_RETURN(std::vector<std::string> command, learner_arguments(given));
  const std::string program = (program_folder() / "flotilla-learner").string();
  command.insert(command.begin(), program);
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
  command->prefix_command();  // the learner reads its own options
  command->footer(
      "flotilla learn [RUN] [--config FILE] [--dry-run] [--SECTION.KEY VALUE ...]\n\n"
      "RUN is HUB/OWNER/RUN; it may stand in the configuration instead ([run] hub, name). --dry-run checks everything\n"
      "and stops; --SECTION.KEY is any field of docs/configuration.md. A run that was started before is resumed from\n"
      "its last checkpoint. --single-writer: for a bucket without conditional writes (docs/s3.md).\n"
      "Examples:\n"
      "  flotilla learn /srv/hub/ada/demo --config configs/demo.toml\n"
      "  flotilla learn /srv/hub/ada/demo --config configs/demo.toml --dry-run\n"
      "  flotilla learn /srv/hub/ada/demo --config configs/demo.toml --learner.mode sequential --learner.steps 20");
  command->callback([&action, command] { action = [given = command->remaining()] { return learn(given); }; });
}

}  // namespace flotilla
