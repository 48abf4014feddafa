#pragma once

#include <chrono>
#include <optional>
#include <ostream>
#include <string>
#include <string_view>

#include "base/clock.h"
#include "telemetry/terminal.h"

namespace flotilla {

// One line that tells how things stand. On a terminal it is rewritten in place, at most five times a second; elsewhere
// a plain line is written, at most every ten seconds. One thread.
class ProgressLine {
 public:
  ProgressLine(std::ostream& out, const Terminal& terminal, const Clock& clock = system_clock())
      : out_(out), terminal_(terminal), clock_(clock) {}
  // Leaves the newest text on its line.
  ~ProgressLine() { finish(); }
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;

  // The text is shown now or, when the last one is too young, with a later call. A line feed in it counts as a space.
  void update(std::string_view text);
  // A line of its own, which stays; the progress is shown again below it.
  void print(std::string_view line);
  // Shows a text that was held back and ends the line. Further updates begin another.
  void finish();

 private:
  void show();

  std::ostream& out_;
  const Terminal terminal_;
  const Clock& clock_;
  std::string text_;
  bool shown_ = true;       // text_ is on the screen as it is
  bool line_open_ = false;  // the cursor is behind a progress text
  std::optional<std::chrono::nanoseconds> last_;
};

}  // namespace flotilla
