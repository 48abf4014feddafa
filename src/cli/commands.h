#pragma once

#include <functional>
#include <string>

#include "base/status.h"

namespace CLI {
class App;
}

namespace flotilla {

// What a command does after its arguments were parsed. invalid_argument ends the program with 2, any other error
// with 1.
using Action = std::function<Status()>;

// Each adds one subcommand with its help and examples, and sets `action` when the command was chosen.
void add_demo_command(CLI::App& app, Action& action);
void add_learn_command(CLI::App& app, Action& action);
void add_work_command(CLI::App& app, Action& action);
void add_eval_command(CLI::App& app, Action& action);
void add_chat_command(CLI::App& app, Action& action);
void add_serve_command(CLI::App& app, Action& action);
void add_hub_command(CLI::App& app, Action& action);
void add_verify_command(CLI::App& app, Action& action);
void add_show_command(CLI::App& app, Action& action);
void add_run_command(CLI::App& app, Action& action);
void add_stop_command(CLI::App& app, Action& action);
void add_model_command(CLI::App& app, Action& action);
void add_bench_command(CLI::App& app, Action& action);
void add_version_command(CLI::App& app, Action& action);

// The program `flotilla`: parses, runs, prints an error, returns the exit code.
int run_cli(int argc, char** argv);

}  // namespace flotilla
