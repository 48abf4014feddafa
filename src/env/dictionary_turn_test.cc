#include "env/dictionary_turn.h"

#include <gtest/gtest.h>

namespace flotilla {
namespace {

using Kind = DictionaryTurn::Kind;

void expect_turn(std::string_view text, Kind kind, std::string_view inside) {
  const DictionaryTurn turn = read_dictionary_turn(text);
  EXPECT_EQ(turn.kind, kind) << text;
  EXPECT_EQ(turn.text, inside) << text;
}

TEST(DictionaryTurn, ReadsWhatStandsBetweenTheTags) {
  expect_turn("<search>red bird</search>", Kind::kSearch, "red bird");
  expect_turn("I think it is <answer> robin\n</answer>", Kind::kAnswer, "robin");
  expect_turn("<answer></answer>", Kind::kAnswer, "");
}

TEST(DictionaryTurn, EndsAtTheFirstClosingTag) {
  expect_turn("<search>bird</search>\n\n", Kind::kSearch, "bird");
  expect_turn("<search>bird</search><answer>robin</answer>", Kind::kSearch, "bird");
  expect_turn("<answer>robin</answer><answer>wren</answer>", Kind::kAnswer, "robin");
}

TEST(DictionaryTurn, ATagLeftOpenSwallowsNothing) {
  expect_turn("<search>red bird <answer>robin</answer>", Kind::kAnswer, "robin");
  expect_turn("<answer>robin <search>bird</search>", Kind::kSearch, "bird");
  expect_turn("<search>red <search>bird</search>", Kind::kSearch, "bird");
  expect_turn("<answer>wren<answer>robin</answer>", Kind::kAnswer, "robin");
}

TEST(DictionaryTurn, WithoutAPairOfTagsIsNoAction) {
  for (const char* text : {"", "robin", "<search>bird", "<answer>robin", "bird</search>", "robin</answer>",
                           "<search>robin</answer>", "<answer>bird</search>", "<SEARCH>bird</SEARCH>",
                           "robin</answer><answer>wren</answer>", "< answer>robin</ answer>"}) {
    expect_turn(text, Kind::kNone, "");
  }
}

}  // namespace
}  // namespace flotilla
