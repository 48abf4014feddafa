#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <string>

#include "cli/commands.h"
#include "engine/engine.h"
#include "sync/run_spec.h"

namespace flotilla {

void add_version_command(CLI::App& app, Action& action) {
  CLI::App* command = app.add_subcommand("version", "Print versions of the program, the formats and the arithmetic");
  command->footer("Example:\n  flotilla version");
  command->callback([&action] {
    action = [] {
      std::string isas;
      for (const Isa isa : supported_isas()) isas += fmt::format("{}{}", isas.empty() ? "" : ", ", isa_name(isa));
      fmt::print("flotilla {}\nhub format {}\narithmetic {}\nkernels on this machine: {}\n", FLOTILLA_VERSION,
                 kHubFormat, kArithmetic, isas);
      return ok_status();
    };
  });
}

}  // namespace flotilla
