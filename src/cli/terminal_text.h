#pragma once

#include <string>
#include <string_view>

namespace flotilla {

// Text that a stranger or a model wrote, for a terminal: what could steer it becomes U+FFFD. That is control characters
// (C0 but line end and tab, delete, C1) and bytes that are no UTF-8. Not thread safe.
class TerminalText {
 public:
  // What can be shown after one more piece; a character may be cut between two.
  std::string push(std::string_view piece);
  // What was held back, of a character that did not come to its end.
  std::string finish();

 private:
  std::string pending_;
};

}  // namespace flotilla
