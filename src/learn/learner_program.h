#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <stop_token>
#include <string>
#include <string_view>

#include "base/status.h"
#include "learn/trainer.h"
#include "sync/signing.h"

namespace flotilla {

using MakeTrainer =
    std::function<Result<std::unique_ptr<Trainer>>(const ModelDescription& description, const TrainerOptions& options)>;

// The program flotilla-learner: reads the configuration, makes the run known at the hub (run.json and artifacts, signed
// with the key in the user's configuration folder), and runs the LearnerLoop until the run has finished or `stop` asks
// to leave. Everything local lies in the configured folder: run.toml as resolved, events/, checkpoints/, environment/,
// the socket `control` and, while the run is paused, the file `paused`. With --dry-run, checks all of it, writes
// nothing, prints what it found and returns. invalid_argument for arguments and configuration; failed_precondition for
// a run that another folder has checkpoints of.
Status run_learner_program(std::span<const std::string> arguments, const MakeTrainer& make_trainer,
                           std::stop_token stop);

// The socket through which a learner with this folder is asked (control_socket.h).
inline constexpr char kControlSocketName[] = "control";
// The key of this user's runs. not_found when there is none yet; permission_denied when it is not `expected`.
Result<std::shared_ptr<const SigningKey>> load_learner_key(const PublicKey& expected);
// Made when it is missing.
Result<std::shared_ptr<const SigningKey>> load_or_create_learner_key();

// Says in this folder that the run is paused: whoever pauses a run makes it, and a learner that starts heeds it.
inline constexpr char kPausedName[] = "paused";
Status set_paused(const std::filesystem::path& folder, bool paused);

// A link that each learner makes on its machine, to its folder: who knows the run finds the learner. `run` is
// OWNER/RUN.
std::filesystem::path learner_link(std::string_view hub, std::string_view run);

}  // namespace flotilla
