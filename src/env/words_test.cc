#include "env/words.h"

#include <algorithm>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace flotilla {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

TEST(Words, AreRunsOfLettersDigitsAndBytesAbove127InLowerCase) {
  EXPECT_THAT(words_of("The dog's 3-legged, \"Café\" (stool)"),
              ElementsAre("the", "dog", "s", "3", "legged", "café", "stool"));
  EXPECT_THAT(words_of(" .,;!?<> \n"), IsEmpty());
  EXPECT_THAT(words_of(""), IsEmpty());
}

TEST(Words, AreCutAtWhiteSpaceWithTheirPunctuation) {
  EXPECT_THAT(split_at_space("  (a  b),\tc\n"), ElementsAre("(a", "b),", "c"));
  EXPECT_THAT(split_at_space(" \n"), IsEmpty());
}

TEST(FunctionWords, AreLowerCaseSingleWordsInOrderAndFound) {
  const auto words = function_words();
  EXPECT_TRUE(std::is_sorted(words.begin(), words.end()));
  for (const std::string_view word : words) {
    EXPECT_TRUE(is_function_word(word));
    EXPECT_THAT(words_of(word), ElementsAre(std::string(word)));
  }
  EXPECT_FALSE(is_function_word("horse"));
  EXPECT_FALSE(is_function_word(""));
}

TEST(NormalizedAnswer, IgnoresCasePunctuationArticlesAndSpaces) {
  EXPECT_EQ(normalized_answer("The  Jack-o'-lantern!"), "jack o lantern");
  EXPECT_EQ(normalized_answer("an apple a day"), "apple day");
  EXPECT_EQ(normalized_answer("\tGENUS_Varanus\n"), "genus varanus");
  EXPECT_EQ(normalized_answer("another thesis"), "another thesis");
}

TEST(NormalizedAnswer, OfNothingButArticlesAndPunctuationIsEmpty) {
  for (const char* text : {"", " ", "the", "A, an; the!", "...", "\n"}) EXPECT_EQ(normalized_answer(text), "");
}

}  // namespace
}  // namespace flotilla
