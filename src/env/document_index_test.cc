#include "env/document_index.h"

#include <cmath>
#include <fstream>
#include <map>
#include <set>
#include <thread>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/files.h"
#include "base/philox.h"
#include "env/words.h"

namespace flotilla {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

constexpr Document kDocuments[] = {{"robin", "small bird with a red breast"},
                                   {"wren", "small brown bird"},
                                   {"red", "colour of blood"},
                                   {"wren", "small brown bird"},
                                   {"spade", "tool that digs"}};

std::vector<std::filesystem::path> files_in(const std::filesystem::path& folder) {
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) files.push_back(entry.path());
  return files;
}

TEST(DocumentIndex, FindsDocumentsWithAnyWordAndEqualOnesByNumber) {
  TemporaryFolder cache;
  const auto index = DocumentIndex::open(kDocuments, {}, cache.path()).value();
  EXPECT_THAT(index->search("Brown!", 3).value(), ElementsAre(1, 3));
  EXPECT_THAT(index->search("wren nonsense", 1).value(), ElementsAre(1));
  EXPECT_THAT(index->search("small bird", 10).value(), ElementsAre(1, 3, 0));
  EXPECT_THAT(index->search("red", 3).value(), ElementsAre(2, 0));  // the title counts twice
}

TEST(DocumentIndex, FindsNothingForNoWordsAndUnknownOnes) {
  TemporaryFolder cache;
  const auto index = DocumentIndex::open(kDocuments, {}, cache.path()).value();
  for (const std::string& words : {std::string(), std::string(" ?!"), std::string("zebra"), std::string(100'000, 'x'),
                                   std::string("\xff\0\n", 3), std::string("\"AND OR NOT NEAR(*\"")}) {
    EXPECT_THAT(index->search(words, 3).value(), IsEmpty());
  }
  EXPECT_THAT(index->search("red", 0).value(), IsEmpty());
}

TEST(DocumentIndex, CountsARepeatedWordOnce) {
  TemporaryFolder cache;
  const auto index = DocumentIndex::open(kDocuments, {}, cache.path()).value();
  EXPECT_EQ(index->search("small red small small small", 3).value(), index->search("red small", 3).value());
}

// BM25 as its paper and Xapian's documentation write it, term by term.
double plain_bm25(const std::vector<std::map<std::string, double>>& documents, std::size_t document,
                  const std::vector<std::string>& query, const RankingParams& ranking) {
  const auto length = [](const auto& counts) {
    double sum = 0;
    for (const auto& [term, count] : counts) sum += count;
    return sum;
  };
  double total = 0;
  for (const auto& counts : documents) total += length(counts);
  const double count = static_cast<double>(documents.size());
  const double normlen = std::max(length(documents[document]) / (total / count), ranking.min_normlen);
  double score = 0;
  for (const std::string& term : std::set<std::string>(query.begin(), query.end())) {
    const auto found = documents[document].find(term);
    if (found == documents[document].end()) continue;
    double with = 0;
    for (const auto& counts : documents) with += counts.contains(term);
    double odds = (count - with + 0.5) / (with + 0.5);
    if (odds < 2) odds = odds * 0.5 + 1;  // Xapian's floor, so that a frequent word never counts against a document
    const double wdf = found->second;
    score += std::log(odds) * wdf * (ranking.k1 + 1) / (ranking.k1 * (1 - ranking.b + ranking.b * normlen) + wdf);
  }
  return score;
}

TEST(DocumentIndex, RanksByBm25) {
  constexpr int kSeed = 3;
  PhiloxStream random(kSeed, 0);
  const auto text = [&](std::size_t words) {
    std::string result;
    for (std::size_t i = 0; i < words; ++i) result += fmt::format("w{} ", random.below(1 + random.below(60)));
    return result;
  };
  std::vector<std::string> titles, bodies;
  for (int i = 0; i < 300; ++i) {
    titles.push_back(text(1 + random.below(3)));
    bodies.push_back(text(4 + random.below(14)));
  }
  std::vector<Document> documents;
  const RankingParams ranking;
  std::vector<std::map<std::string, double>> counts(300);
  for (int i = 0; i < 300; ++i) {
    documents.push_back({titles[i], bodies[i]});
    for (const std::string& word : words_of(titles[i])) counts[i][word] += ranking.title_weight;
    for (const std::string& word : words_of(bodies[i])) counts[i][word] += 1;
  }
  TemporaryFolder cache;
  const auto index = DocumentIndex::open(documents, ranking, cache.path()).value();
  for (int q = 0; q < 200; ++q) {
    const std::string query = text(1 + random.below(6));
    std::vector<std::pair<double, std::uint32_t>> expected;
    for (std::uint32_t i = 0; i < 300; ++i) {
      const double score = plain_bm25(counts, i, words_of(query), ranking);
      if (score > 0) expected.emplace_back(-std::round(score * 1e9), i);  // equal ones by number
    }
    std::sort(expected.begin(), expected.end());
    expected.resize(std::min<std::size_t>(expected.size(), 5));
    std::vector<std::uint32_t> numbers;
    for (const auto& [score, number] : expected) numbers.push_back(number);
    ASSERT_EQ(index->search(query, 5).value(), numbers) << query << " seed " << kSeed;
  }
}

TEST(DocumentIndex, IsBuiltOnceForTheSameDocuments) {
  TemporaryFolder cache;
  ASSERT_TRUE(DocumentIndex::open(kDocuments, {}, cache.path()).ok());
  const auto files = files_in(cache.path());
  ASSERT_EQ(files.size(), 1u);
  const auto built = std::filesystem::last_write_time(files[0]);
  ASSERT_TRUE(DocumentIndex::open(kDocuments, {}, cache.path()).ok());
  EXPECT_EQ(std::filesystem::last_write_time(files[0]), built);
  ASSERT_TRUE(DocumentIndex::open(std::span(kDocuments).first(2), {}, cache.path()).ok());
  EXPECT_EQ(files_in(cache.path()).size(), 2u);
}

TEST(DocumentIndex, IsBuiltAgainWhenTheFileIsDamaged) {
  TemporaryFolder cache;
  ASSERT_TRUE(DocumentIndex::open(kDocuments, {}, cache.path()).ok());
  const auto file = files_in(cache.path()).at(0);
  for (const char* damage : {"", "nonsense"}) {
    std::ofstream(file, std::ios::trunc) << damage;
    const auto index = DocumentIndex::open(kDocuments, {}, cache.path());
    ASSERT_TRUE(index.ok()) << index.status().to_string();
    EXPECT_THAT((*index)->search("brown", 3).value(), ElementsAre(1, 3));
  }
}

TEST(DocumentIndex, SeveralMayBuildItAtOnceAndLeaveOneFile) {
  TemporaryFolder cache;
  std::vector<std::jthread> threads;
  std::vector<Status> results(4);
  for (Status& result : results) {
    threads.emplace_back([&] { result = DocumentIndex::open(kDocuments, {}, cache.path() / "deep/er").status(); });
  }
  threads.clear();
  for (const Status& result : results) EXPECT_TRUE(result.ok()) << result.to_string();
  EXPECT_EQ(files_in(cache.path() / "deep/er").size(), 1u);
}

TEST(DocumentIndex, AnswersSeveralThreadsAtOnce) {
  TemporaryFolder cache;
  const auto index = DocumentIndex::open(kDocuments, {}, cache.path()).value();
  std::vector<std::jthread> threads;
  std::vector<int> wrong(4);
  for (int& count : wrong) {
    threads.emplace_back([&] {
      for (int i = 0; i < 200; ++i)
        count += index->search("small red bird", 1).value() != std::vector<std::uint32_t>{0};
    });
  }
  threads.clear();
  EXPECT_THAT(wrong, testing::Each(0));
}

TEST(DocumentIndex, NamesTheFolderThatCannotBeMade) {
  TemporaryFolder folder;
  std::ofstream(folder.path() / "file") << "x";
  const auto index = DocumentIndex::open(kDocuments, {}, folder.path() / "file/cache");
  ASSERT_FALSE(index.ok());
  EXPECT_THAT(index.status().message(), testing::HasSubstr("file/cache"));
}

}  // namespace
}  // namespace flotilla
