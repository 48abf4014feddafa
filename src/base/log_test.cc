#include "base/log.h"

#include <gtest/gtest.h>

namespace flotilla {
namespace {

std::string logged(LogLevel level, std::string_view text) {
  testing::internal::CaptureStderr();
  log_line(level, "module", text);
  return testing::internal::GetCapturedStderr();
}

TEST(Log, a_line_has_level_module_and_text) {
  const std::string line = logged(LogLevel::kWarning, "something is odd");
  EXPECT_NE(line.find(" W module: something is odd\n"), std::string::npos) << line;
}

TEST(Log, control_characters_cannot_forge_a_line_or_drive_the_terminal) {
  const std::string line = logged(LogLevel::kError, std::string_view("a\nb\r\x1b[2J\x7f\0{} é", 15));
  EXPECT_NE(line.find("a\\x0ab\\x0d\\x1b[2J\\x7f\\x00{} é\n"), std::string::npos) << line;
}

TEST(Log, the_level_decides_what_is_printed) {
  EXPECT_EQ(logged(LogLevel::kDebug, "detail"), "");
  set_log_level(LogLevel::kError);
  EXPECT_EQ(logged(LogLevel::kWarning, "odd"), "");
  EXPECT_NE(logged(LogLevel::kError, "bad"), "");
  set_log_level(LogLevel::kInfo);
  EXPECT_NE(logged(LogLevel::kInfo, "fine"), "");
}

TEST(Log, formats_its_arguments) {
  testing::internal::CaptureStderr();
  log_info("module", "{} of {}", 3, "four");
  EXPECT_NE(testing::internal::GetCapturedStderr().find("3 of four"), std::string::npos);
}

}  // namespace
}  // namespace flotilla
