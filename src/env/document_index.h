#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/hashing.h"
#include "base/status.h"

namespace flotilla {

struct Document {
  std::string_view title;
  std::string_view body;
};

// How documents are ranked: BM25 (Robertson, Walker, Jones, Hancock-Beaulieu, Gatford, TREC-3, 1994) as Xapian 1.4
// computes it. Part of an environment's digest.
struct RankingParams {
  double k1 = 1.2;
  double b = 0.75;
  double min_normlen = 0.5;
  std::uint32_t title_weight = 2;  // a word of the title counts as so many words of the body
};

// Full text search. The index is a file in a cache folder, named by what it is made of and built when it is not there;
// several processes may build it at once. Thread safe: a search borrows a handle of its own.
class DocumentIndex {
 public:
  // Errors are those of the file system, with the path.
  static Result<std::unique_ptr<DocumentIndex>> open(std::span<const Document> documents, const RankingParams& ranking,
                                                     const std::filesystem::path& cache);
  virtual ~DocumentIndex() = default;

  // Numbers of the best `count` documents that have any word of `words` (words.h), best first, equal ones by number. A
  // word that occurs twice counts once. Equal arguments give equal results. No words or no match: empty.
  virtual Result<std::vector<std::uint32_t>> search(std::string_view words, std::uint32_t count) const = 0;
};

}  // namespace flotilla
