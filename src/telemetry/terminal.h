#pragma once

namespace flotilla {

// What text can be shown on.
struct Terminal {
  bool interactive = false;  // a person's terminal, not a file or a pipe
  bool unicode = false;      // the locale is UTF-8
  int width = 80;            // columns
};

// Of a file descriptor (1 for standard output) and the environment.
Terminal inspect_terminal(int fd);

}  // namespace flotilla
