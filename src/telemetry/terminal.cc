#include "telemetry/terminal.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <string>

namespace flotilla {
namespace {

// POSIX's order of precedence; the first that is set and not empty decides.
bool locale_is_utf8() {
  for (const char* name : {"LC_ALL", "LC_CTYPE", "LANG"}) {
    const char* value = std::getenv(name);
    if (value == nullptr || *value == '\0') continue;
    std::string text(value);
    std::transform(text.begin(), text.end(), text.begin(), [](char c) { return c >= 'A' && c <= 'Z' ? c + 32 : c; });
    return text.find("utf-8") != std::string::npos || text.find("utf8") != std::string::npos;
  }
  return false;
}

}  // namespace

Terminal inspect_terminal(int fd) {
  Terminal terminal;
  const char* kind = std::getenv("TERM");
  terminal.interactive = ::isatty(fd) == 1 && kind != nullptr && std::string(kind) != "dumb";
  terminal.unicode = locale_is_utf8();
  winsize size{};
  if (terminal.interactive && ::ioctl(fd, TIOCGWINSZ, &size) == 0 && size.ws_col >= 20) terminal.width = size.ws_col;
  return terminal;
}

}  // namespace flotilla
