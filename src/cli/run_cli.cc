#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <cstdio>
#include <exception>

#include "cli/commands.h"

namespace flotilla {
namespace {

constexpr int kFailure = 1;
constexpr int kUsage = 2;

}  // namespace

int run_cli(int argc, char** argv) {
  CLI::App app("Flotilla trains language models by reinforcement learning on machines that nobody can wire together.",
               "flotilla");
  app.require_subcommand(1);
  app.set_help_all_flag("--help-all", "Help of all commands");
  app.footer("Start with: flotilla demo. Help of one command: flotilla COMMAND --help");
  Action action;
  add_demo_command(app, action);
  add_learn_command(app, action);
  add_work_command(app, action);
  add_eval_command(app, action);
  add_chat_command(app, action);
  add_serve_command(app, action);
  add_hub_command(app, action);
  add_verify_command(app, action);
  add_show_command(app, action);
  add_run_command(app, action);
  add_stop_command(app, action);
  add_model_command(app, action);
  add_bench_command(app, action);
  add_version_command(app, action);
  const auto named = [&](const CLI::App* command) { return command->get_name() == argv[1]; };
  if (argc > 1 && argv[1][0] != '-' && app.get_subcommands(named).empty()) {
    fmt::print(stderr, "flotilla: unknown command '{}'; flotilla --help lists them\n", argv[1]);
    return kUsage;
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : kUsage;
  }
  Status status;
  try {
    status = action();
  } catch (const std::exception& error) {
    // A library's complaint that has no Status of its own: a path that is too long, memory.
    status = internal_error(error.what());
  }
  if (status.ok()) return 0;
  fmt::print(stderr, "flotilla: {}\n", status.message());
  return status.code() == StatusCode::kInvalidArgument ? kUsage : kFailure;
}

}  // namespace flotilla
