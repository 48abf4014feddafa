#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <stop_token>
#include <string>
#include <string_view>

#include "learn/trainer.h"

namespace flotilla {

using MakeTrainer =
    std::function<Result<std::unique_ptr<Trainer>>(const ModelDescription& description, const TrainerOptions& options)>;

// The program flotilla-learner: reads the configuration, makes the run known at the hub (run.json and artifacts, signed
// with the key in the user's configuration folder), and runs the LearnerLoop until the run has finished or `stop` asks
// to leave. Everything local lies in the configured folder: run.toml as resolved, events/, checkpoints/, environment/,
// and the socket `control`. With --dry-run, checks all of it, writes nothing, prints what it found and returns.
// invalid_argument for arguments and configuration; failed_precondition for a run that another folder has checkpoints
// of.
Status run_learner_program(std::span<const std::string> arguments, const MakeTrainer& make_trainer,
                           std::stop_token stop);

// The socket through which a learner with this folder is asked (control_socket.h).
inline constexpr char kControlSocketName[] = "control";
// A link that each learner makes on its machine, to its folder: who knows the run finds the learner. `run` is
// OWNER/RUN.
std::filesystem::path learner_link(std::string_view hub, std::string_view run);

}  // namespace flotilla
