#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/files.h"
#include "base/hashing.h"
#include "env/dictionary_entry.h"
#include "env/words.h"

namespace flotilla {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::SizeIs;

constexpr char kWordnet[] = "/usr/share/wordnet";
constexpr char kThrush[] =
    "00000010 05 n 01 song_thrush 0 001 @ 00000010 n 0000 | a thrush that sings well in the morning; \"x\"  \n";

std::string line(const std::string& file, const std::string& words, const std::string& pointers,
                 const std::string& gloss) {
  return std::string(kThrush) + "00000020 " + file + " n " + words + " " + pointers + " | " + gloss + "  \n";
}

std::vector<DictionaryEntry> second_entry(const std::string& text) {
  auto entries = read_wordnet_nouns(text).value();
  entries.erase(entries.begin());
  return entries;
}

TEST(Wordnet, MakesAnEntryOfASynset) {
  const auto entries = second_entry(
      "  1 license\n" + line("05", "02 robin 0 robin_redbreast 1", "002 ~ 00000010 n 0000 @i 00000010 n 0000",
                             "the small  songbird with a red breast; \"a robin; sings\""));
  ASSERT_THAT(entries, SizeIs(1));
  EXPECT_THAT(entries[0].answers, ElementsAre("robin", "robin redbreast"));
  EXPECT_EQ(entries[0].title(), "robin");
  EXPECT_EQ(entries[0].definition, "the small songbird with a red breast");
  EXPECT_EQ(entries[0].kind, "song thrush");
}

TEST(Wordnet, DescriptionsHaveNoWordOfTheTermAndAllFunctionWords) {
  const auto entries = second_entry(line("06", "01 Garden-spade 0", "001 @ 00000010 n 0000",
                                         "a spade, in the (garden) with which one digs, or waters:"));
  ASSERT_THAT(entries, SizeIs(1));
  const auto words = words_of(entries[0].description);
  for (const char* own : {"garden", "spade"}) EXPECT_EQ(std::count(words.begin(), words.end(), own), 0);
  for (const char* kept : {"a", "in", "the", "with", "which", "one", "or"}) {
    EXPECT_EQ(std::count(words.begin(), words.end(), kept), 1) << kept;
  }
  EXPECT_FALSE(entries[0].description.ends_with(":"));
}

TEST(Wordnet, LeavesOutWhatTheTaskDoesNotAskFor) {
  const std::string good_words = "01 robin 0", good_pointers = "001 @ 00000010 n 0000";
  const std::string gloss = "a small bird that sings";
  EXPECT_THAT(second_entry(line("20", good_words, good_pointers, gloss)), SizeIs(1));
  EXPECT_THAT(second_entry(line("18", good_words, good_pointers, gloss)), SizeIs(0));            // a person
  EXPECT_THAT(second_entry(line("05", good_words, "000", gloss)), SizeIs(0));                    // no hypernym
  EXPECT_THAT(second_entry(line("05", good_words, "001 ~ 00000010 n 0000", gloss)), SizeIs(0));  // a hyponym only
  EXPECT_THAT(second_entry(line("05", "01 B-52 0", good_pointers, gloss)), SizeIs(0));           // a digit
  EXPECT_THAT(second_entry(line("05", good_words, good_pointers, "a small bird sings")), SizeIs(0));
  EXPECT_THAT(second_entry(line("05", good_words, good_pointers, "a a a a; sings at night often")), SizeIs(0));
  EXPECT_THAT(second_entry(line("05", good_words, good_pointers, "b b b b b b b b b b b b b b b b")), SizeIs(1));
  EXPECT_THAT(second_entry(line("05", good_words, good_pointers, "b b b b b b b b b b b b b b b b b")), SizeIs(0));
  EXPECT_THAT(second_entry(line("05", good_words, good_pointers, "the robin that is a robin")),
              SizeIs(0));  // nothing left
}

TEST(Wordnet, NamesTheLineThatIsNotInItsFormat) {
  const auto refused = [](const std::string& text, const char* reason) {
    const auto entries = read_wordnet_nouns(std::string(kThrush) + text + "\n");
    EXPECT_EQ(entries.status().code(), StatusCode::kDataLoss) << text;
    EXPECT_THAT(entries.status().message(), HasSubstr(reason));
  };
  refused("", "data.noun line 2: no gloss");
  refused("00000020 05 n 01 robin 0 000", "no gloss");
  refused("00000020 05 n | gloss", "it does not begin with");
  refused("x 05 n 01 robin 0 000 | gloss", "it does not begin with");
  refused("00000020 y n 01 robin 0 000 | gloss", "it does not begin with");
  refused("00000020 05 n zz robin 0 000 | gloss", "it does not begin with");
  refused("00000020 05 n 00 000 | gloss", "the numbers of words and pointers");
  refused("00000020 05 n 02 robin 0 000 | gloss", "the numbers of words and pointers");
  refused("00000020 05 n ffffffffffffffff robin 0 000 | gloss", "the numbers of words and pointers");
  refused("00000020 05 n 01 robin 0 q | gloss", "the numbers of words and pointers");
  refused("00000020 05 n 01 robin 0 001 @ 5 n | gloss", "the numbers of words and pointers");
  refused("00000020 05 n 01 robin 0 4611686018427387904 | gloss", "the numbers of words and pointers");
  refused("00000020 05 n 01 robin 0 001 @ x n 0000 | gloss", "a hypernym without an offset");
  refused("00000020 05 n 01 robin 0 001 @ 00000099 n 0000 | a small bird that sings", "which does not exist");
}

TEST(Wordnet, AFolderWithoutItOrWithTooFewEntriesIsRefused) {
  TemporaryFolder folder;
  EXPECT_EQ(make_dictionary(folder.path()).status().code(), StatusCode::kNotFound);
  ASSERT_TRUE(write_file_atomically(folder.path() / "data.noun", std::string_view(kThrush)).ok());
  const auto small = make_dictionary(folder.path());
  EXPECT_EQ(small.status().code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(small.status().message(), HasSubstr("1 usable entries; the task needs 20000"));
}

TEST(Wordnet, Version3GivesTheSameArtifactEverywhere) {
  if (!std::filesystem::exists(std::filesystem::path(kWordnet) / "data.noun")) {
    GTEST_SKIP() << "no WordNet (package wordnet-base)";
  }
  const Dictionary dictionary = make_dictionary(kWordnet).value();
  EXPECT_EQ(dictionary.entries.size(), 20'000u);
  EXPECT_EQ(dictionary.held_out, 500u);
  for (const DictionaryEntry& entry : dictionary.entries) {
    const auto words = words_of(entry.description);
    ASSERT_FALSE(std::all_of(words.begin(), words.end(), is_function_word)) << entry.title();
  }
  const Bytes artifact = write_dictionary(dictionary);
  EXPECT_EQ(sha256(artifact).to_hex(), "bd81fa068213b9f32e2b832a620479dcb93515ff0782e9bff9c930614ec11ce6");
  EXPECT_EQ(read_dictionary(artifact).value(), dictionary);
}

}  // namespace
}  // namespace flotilla
