#include "telemetry/progress_line.h"

#include <algorithm>

namespace flotilla {
namespace {

using namespace std::chrono_literals;
constexpr std::chrono::nanoseconds kTerminalPause = 200ms;
constexpr std::chrono::nanoseconds kPlainPause = 10s;
constexpr std::string_view kClearLine = "\r\x1b[K";

// The first `columns` characters; each UTF-8 character is taken as one column wide.
std::string_view fit(std::string_view text, int columns) {
  int seen = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const bool starts_character = (static_cast<unsigned char>(text[i]) & 0xc0) != 0x80;
    if (starts_character && seen++ == columns) return text.substr(0, i);
  }
  return text;
}

}  // namespace

void ProgressLine::update(std::string_view text) {
  if (text == text_) return;
  text_ = text;
  std::replace(text_.begin(), text_.end(), '\n', ' ');
  shown_ = false;
  const auto now = clock_.monotonic();
  if (!last_ || now - *last_ >= (terminal_.interactive ? kTerminalPause : kPlainPause)) show();
}

void ProgressLine::print(std::string_view line) {
  if (line_open_) out_ << kClearLine;
  out_ << line << '\n';
  if (line_open_) {
    line_open_ = false;
    show();
  }
  out_.flush();
}

void ProgressLine::finish() {
  if (!shown_) show();
  if (line_open_) out_ << '\n';
  out_.flush();
  line_open_ = false;
  last_.reset();
}

void ProgressLine::show() {
  if (terminal_.interactive) {
    // The last column stays free: writing there makes some terminals wrap.
    out_ << kClearLine << fit(text_, terminal_.width - 1);
    line_open_ = true;
  } else {
    out_ << text_ << '\n';
  }
  out_.flush();
  shown_ = true;
  last_ = clock_.monotonic();
}

}  // namespace flotilla
