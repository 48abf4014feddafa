#include "cli/terminal_text.h"

#include <gtest/gtest.h>

namespace flotilla {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

std::string shown(std::string_view text, std::size_t piece) {
  TerminalText terminal;
  std::string all;
  for (std::size_t i = 0; i < text.size(); i += piece) all += terminal.push(text.substr(i, piece));
  return all + terminal.finish();
}

TEST(TerminalText, WhatSteersATerminalIsReplacedHoweverItIsCut) {
  const std::string r(kReplacement);
  const std::pair<std::string, std::string> texts[] = {
      {"plain\n\ttext", "plain\n\ttext"},
      {"h\xC3\xA9 \xE2\x82\xAC \xF0\x9F\x98\x80", "h\xC3\xA9 \xE2\x82\xAC \xF0\x9F\x98\x80"},
      {"\x1b]0;title\a", r + "]0;title" + r},
      {"\x1b[2J\r\b\x7f", r + "[2J" + r + r + r},
      {std::string("a\0b", 3), "a" + r + "b"},
      {"\xC2\x9B"
       "2J\xC2\x80\xC2\x9F",
       r + "2J" + r + r},        // C1 as UTF-8
      {"\xC2\xA0", "\xC2\xA0"},  // the first character after them
      {"\x9B"
       "2J\xFF",
       r + "2J" + r},   // C1 as one byte
      {"\xE2\x82", r},  // cut at the end
      {"\xE2\x1b[", r + r + "["},
  };
  for (const auto& [text, expected] : texts) {
    for (const std::size_t piece : {1u, 2u, 3u, 100u}) EXPECT_EQ(shown(text, piece), expected) << piece;
  }
}

}  // namespace
}  // namespace flotilla
