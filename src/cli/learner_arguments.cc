#include "cli/learner_arguments.h"

#include <fmt/format.h>

#include "cli/run_address.h"

namespace flotilla {
namespace {

constexpr std::string_view kSingleWriter = "--single-writer";

// Of the learner's options only these stand alone; the others are --NAME VALUE or --NAME=VALUE.
bool takes_next(const std::string& option) {
  return option != "--dry-run" && option != "--help" && option != "-h" && option.find('=') == std::string::npos;
}

}  // namespace

Result<std::vector<std::string>> learner_arguments(const std::vector<std::string>& arguments) {
  std::vector<std::string> run, options;
  bool single_writer = false;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const std::string& argument = arguments[i];
    if (argument == kSingleWriter) {
      single_writer = true;
      continue;
    }
    if (argument.starts_with("-")) {
      options.push_back(argument);
      if (takes_next(argument) && i + 1 < arguments.size()) options.push_back(arguments[++i]);
      continue;
    }
    if (!run.empty()) return invalid_argument(fmt::format("learn: unexpected '{}': RUN is already given", argument));
    FLOTILLA_ASSIGN_OR_RETURN(const RunAddress address, RunAddress::parse(argument));
    run = {"--run.hub", address.hub, "--run.name", address.owner + "/" + address.run};
  }
  if (single_writer) {
    if (run.empty() || run[1].find("://") == std::string::npos) {
      return invalid_argument("learn: --single-writer is for a RUN in a bucket; in run.hub it is single-writer=yes");
    }
    run[1] += run[1].find('?') == std::string::npos ? "?single-writer=yes" : "&single-writer=yes";
  }
  run.insert(run.end(), options.begin(), options.end());
  return run;
}

}  // namespace flotilla
