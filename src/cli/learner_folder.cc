#include "cli/learner_folder.h"

#include <fmt/format.h>

#include <chrono>

#include "learn/control_socket.h"
#include "learn/learner_program.h"

namespace flotilla {
namespace {

constexpr std::chrono::seconds kAnswerWithin{10};

}  // namespace

Result<std::filesystem::path> learner_folder(const RunAddress& address, const std::string& named) {
  std::error_code error;
  if (!named.empty()) {
    if (std::filesystem::is_directory(named, error)) return std::filesystem::path(named);
    return not_found(fmt::format("--folder: there is no folder {}", named));
  }
  auto folder = std::filesystem::read_symlink(learner_link(address.hub, address.owner + "/" + address.run), error);
  if (!error) return folder;
  return not_found(
      fmt::format("this user has started no learner of {} here; ask on its machine, or name its [run] folder with "
                  "--folder",
                  address.text()));
}

Status ask_learner(const std::filesystem::path& folder, std::string_view command) {
  FLOTILLA_ASSIGN_OR_RETURN(const std::string answer,
                            ask_control_socket(folder / kControlSocketName, command, kAnswerWithin));
  if (answer.find("\"ok\":true") != std::string::npos) return ok_status();
  return internal_error("the learner answers: " + answer);
}

}  // namespace flotilla
