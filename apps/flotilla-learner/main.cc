#include <iostream>
#include <string>
#include <vector>

#include "cli/stop_signals.h"
#include "learn/learner_program.h"
#include "learn/torch/torch_trainer.h"

int main(int argc, char** argv) {
  flotilla::StopSignals signals;
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  const flotilla::Status status =
      flotilla::run_learner_program(arguments, flotilla::make_torch_trainer, signals.token());
  if (status.ok()) return 0;
  std::cerr << "flotilla-learner: " << status.to_string() << "\n";
  return status.code() == flotilla::StatusCode::kInvalidArgument ? 2 : 1;
}
