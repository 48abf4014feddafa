#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/files.h"
#include "env/dictionary_entry.h"

namespace flotilla {
namespace {

using testing::HasSubstr;

Dictionary small_dictionary() {
  return {{{{"robin", "redbreast"}, "small Old World songbird with a reddish breast", "thrush", "small with a breast"},
           {{"spoon"}, "a piece of cutlery with a shallow bowl", "cutlery", "a of with a shallow bowl"},
           {{"rye"}, "grain of a hardy cereal grass", "cereal", "of a hardy grass"}},
          1};
}

void expect_refused(const Bytes& bytes, StatusCode code, const char* reason) {
  const auto dictionary = read_dictionary(bytes);
  EXPECT_EQ(dictionary.status().code(), code) << reason;
  EXPECT_THAT(dictionary.status().message(), HasSubstr(reason));
}

TEST(DictionaryFormat, RoundTrips) {
  const Dictionary dictionary = small_dictionary();
  EXPECT_EQ(read_dictionary(write_dictionary(dictionary)).value(), dictionary);
}

TEST(DictionaryFormat, ReadsAndWritesTheGoldenFile) {
  const Bytes golden = read_file("tests/golden/dictionary-format-1.bin").value();
  EXPECT_EQ(read_dictionary(golden).value(), small_dictionary());
  EXPECT_EQ(write_dictionary(small_dictionary()), golden);
}

TEST(DictionaryFormat, RefusesEveryPrefixAndATrailingByte) {
  Bytes bytes = write_dictionary(small_dictionary());
  for (std::size_t size = 0; size < bytes.size(); ++size) {
    ASSERT_EQ(read_dictionary(ByteSpan(bytes).first(size)).status().code(), StatusCode::kDataLoss) << size;
  }
  bytes.push_back(0);
  expect_refused(bytes, StatusCode::kDataLoss, "1 bytes after the last entry");
}

TEST(DictionaryFormat, NeverReadsAFlippedBitAsTheSameDictionary) {
  const Bytes bytes = write_dictionary(small_dictionary());
  for (std::size_t bit = 0; bit < bytes.size() * 8; ++bit) {
    Bytes flipped = bytes;
    flipped[bit / 8] ^= 1 << (bit % 8);
    const auto read = read_dictionary(flipped);
    ASSERT_FALSE(read.ok() && *read == small_dictionary()) << bit;
  }
}

TEST(DictionaryFormat, RefusesAnotherMagicAndFormat) {
  Bytes bytes = write_dictionary(small_dictionary());
  bytes[8] = 2;
  expect_refused(bytes, StatusCode::kFailedPrecondition, "format 2; this program reads format 1: upgrade it");
  bytes[0] = 'X';
  expect_refused(bytes, StatusCode::kDataLoss, "not a dictionary artifact");
}

TEST(DictionaryFormat, RefusesASplitWithoutTrainingOrHeldOutTasks) {
  for (const std::uint32_t held_out : {0u, 3u, 4u}) {
    Dictionary dictionary = small_dictionary();
    dictionary.held_out = held_out;
    expect_refused(write_dictionary(dictionary), StatusCode::kDataLoss, "of 3 entries held out");
  }
}

TEST(DictionaryFormat, RefusesAnEntryWithoutAnswersOrWithTooMany) {
  for (const std::size_t answers : {0, 257}) {
    Dictionary dictionary = small_dictionary();
    dictionary.entries[1].answers.assign(answers, "x");
    expect_refused(write_dictionary(dictionary), StatusCode::kDataLoss, "entry 1: ");
  }
}

TEST(DictionaryFormat, RefusesTextsThatAreEmptyTooLongOrNotPrintable) {
  for (const std::string& text : {std::string(), std::string(4097, 'x'), std::string("line\nbreak"),
                                  std::string("\x7f"), std::string("caf\xc3\xa9")}) {
    Dictionary dictionary = small_dictionary();
    dictionary.entries[2].kind = text;
    expect_refused(write_dictionary(dictionary), StatusCode::kDataLoss, "entry 2: a text ");
  }
}

}  // namespace
}  // namespace flotilla
