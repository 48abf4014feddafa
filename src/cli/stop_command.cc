#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <chrono>
#include <filesystem>
#include <memory>
#include <string>

#include "cli/commands.h"
#include "cli/run_address.h"
#include "learn/control_socket.h"
#include "learn/learner_program.h"

namespace flotilla {
namespace {

constexpr std::chrono::seconds kAnswerWithin{10};

struct StopOptions {
  std::string run;
  std::string folder;
  bool leave = false;
};

Status stop(const StopOptions& options) {
  FLOTILLA_ASSIGN_OR_RETURN(const RunAddress address, RunAddress::parse(options.run));
  std::filesystem::path folder = options.folder;
  if (folder.empty()) {
    std::error_code error;
    folder = std::filesystem::read_symlink(learner_link(address.hub, address.owner + "/" + address.run), error);
    if (error) {
      return not_found(fmt::format(
          "this user has started no learner of {} here; ask on its machine, or name its [run] folder with --folder",
          address.text()));
    }
  }
  const auto answer = ask_control_socket(folder / kControlSocketName, options.leave ? "leave" : "stop", kAnswerWithin);
  if (!answer.ok())
    return answer.status().with_context(fmt::format(
        "no learner of {} runs in {}; flotilla show tells how the run stands", address.text(), folder.string()));
  if (answer->find("\"ok\":true") == std::string::npos) return internal_error("the learner answers: " + *answer);
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
