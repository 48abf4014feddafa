#pragma once

#include <string_view>

#include <fmt/format.h>

namespace flotilla {

enum class LogLevel { kDebug, kInfo, kWarning, kError };

// One line to standard error: time, level, module, text. Thread safe. Text of files and peers is printed with control
// characters escaped.
void log_line(LogLevel level, std::string_view module, std::string_view text);
void set_log_level(LogLevel level);

template <typename... Args>
void log_info(std::string_view module, fmt::format_string<Args...> format, Args&&... args) {
  log_line(LogLevel::kInfo, module, fmt::format(format, std::forward<Args>(args)...));
}
template <typename... Args>
void log_warning(std::string_view module, fmt::format_string<Args...> format, Args&&... args) {
  log_line(LogLevel::kWarning, module, fmt::format(format, std::forward<Args>(args)...));
}
template <typename... Args>
void log_error(std::string_view module, fmt::format_string<Args...> format, Args&&... args) {
  log_line(LogLevel::kError, module, fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace flotilla
