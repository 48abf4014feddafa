#include "cli/subject_address.h"

#include <fmt/format.h>

#include <charconv>
#include <filesystem>

namespace flotilla {

Result<SubjectAddress> SubjectAddress::parse(const std::string& text) {
  SubjectAddress subject;
  std::error_code ignored;
  const std::filesystem::path path(text);
  if (std::filesystem::is_regular_file(path, ignored) || std::filesystem::exists(path / "config.json", ignored)) {
    subject.model = text;
    return subject;
  }
  std::string run(split_address(text).path);
  // An @ before the last slash belongs to a folder's name.
  if (const std::size_t at = run.rfind('@'); at != std::string::npos && run.find('/', at) == std::string::npos) {
    std::uint64_t number = 0;
    const char* end = run.data() + run.size();
    const auto [stop, error] = std::from_chars(run.data() + at + 1, end, number);
    if (error != std::errc() || stop != end) {
      return invalid_argument(fmt::format("'{}' after @ is not a version number", run.substr(at + 1)));
    }
    subject.version = Version(number);
    run.resize(at);
  }
  auto address = RunAddress::parse(fmt::format("{}{}", run, split_address(text).settings));
  if (!address.ok()) {
    const std::string message = fmt::format(
        "'{}' is neither a model file, nor a folder with config.json, nor a run (HUB/OWNER/RUN or "
        "HUB/OWNER/RUN@VERSION)",
        text);
    const bool path_like = !text.empty() && !subject.version && text.find("://") == std::string::npos;
    return path_like ? not_found(message) : invalid_argument(message);
  }
  subject.run = std::move(*address);
  return subject;
}

}  // namespace flotilla
