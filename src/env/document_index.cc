#include "env/document_index.h"

#include <unistd.h>

#include <algorithm>
#include <mutex>
#include <system_error>
#include <utility>

#include <fmt/format.h>
#include <xapian.h>

#include "env/words.h"

namespace flotilla {
namespace {

namespace fs = std::filesystem;

constexpr std::uint32_t kIndexFormat = 1;  // rises when the same documents are to be indexed otherwise
constexpr std::size_t kMaxTermBytes = 64;  // Xapian's limit is 245; no word of a dictionary is longer than this

// Whether a list of words is indexed or asked for, the same of them count.
std::vector<std::string> terms_of(std::string_view text) {
  std::vector<std::string> words = words_of(text);
  std::erase_if(words, [](const std::string& word) { return word.size() > kMaxTermBytes; });
  return words;
}

Status xapian_status(const Xapian::Error& error, const fs::path& path) {
  return internal_error(fmt::format("index {}: {}: {}", path.string(), error.get_type(), error.get_msg()));
}

std::string index_file_name(std::span<const Document> documents, const RankingParams& ranking) {
  Sha256 hash;
  hash.update_value(kIndexFormat);
  hash.update_framed(Xapian::version_string());  // another version may not read the file
  hash.update_value(ranking.title_weight);
  for (const Document& document : documents) {
    hash.update_framed(document.title);
    hash.update_framed(document.body);
  }
  return fmt::format("index-{}.xapian", hash.finish().to_hex().substr(0, 32));
}

// Writes the index into a folder of its own and moves the finished file to `path`: whoever comes last wins, and all are
// equal.
Status build_index(std::span<const Document> documents, const RankingParams& ranking, const fs::path& path) {
  std::string scratch = path.string() + ".XXXXXX";
  if (mkdtemp(scratch.data()) == nullptr) return errno_status(errno, "make a folder beside " + path.string());
  const auto build = [&]() -> Status {
    try {
      Xapian::WritableDatabase database(scratch + "/build", Xapian::DB_CREATE | Xapian::DB_BACKEND_GLASS);
      for (const Document& document : documents) {
        Xapian::Document indexed;
        for (const std::string& term : terms_of(document.title)) indexed.add_term(term, ranking.title_weight);
        for (const std::string& term : terms_of(document.body)) indexed.add_term(term, 1);
        database.add_document(indexed);
      }
      database.commit();
      database.compact(scratch + "/file", Xapian::DBCOMPACT_SINGLE_FILE | Xapian::DBCOMPACT_NO_RENUMBER);
    } catch (const Xapian::Error& error) {
      return xapian_status(error, path);
    }
    std::error_code error;
    fs::rename(scratch + "/file", path, error);
    return error ? errno_status(error.value(), "move the index to " + path.string()) : ok_status();
  };
  Status status = build();
  std::error_code ignored;
  fs::remove_all(scratch, ignored);
  return status;
}

class XapianIndex : public DocumentIndex {
 public:
  XapianIndex(fs::path path, const RankingParams& ranking) : path_(std::move(path)), ranking_(ranking) {}

  // True when the file is there and holds so many documents.
  bool holds(std::size_t documents) const {
    try {
      Xapian::Database database(path_.string());
      if (database.get_doccount() != documents || database.get_lastdocid() != documents) return false;
      give_back(std::move(database));
      return true;
    } catch (const Xapian::Error&) {
      return false;
    }
  }

  Result<std::vector<std::uint32_t>> search(std::string_view words, std::uint32_t count) const override {
    std::vector<std::string> terms = terms_of(words);
    std::sort(terms.begin(), terms.end());
    terms.erase(std::unique(terms.begin(), terms.end()), terms.end());
    if (terms.empty() || count == 0) return std::vector<std::uint32_t>{};
    try {
      Xapian::Database database = borrow();
      std::vector<std::uint32_t> found;
      {
        // Query and matches refer to the database and count references without locks: they go before it is given back.
        Xapian::Enquire enquire(database);
        enquire.set_query(Xapian::Query(Xapian::Query::OP_OR, terms.begin(), terms.end()));
        enquire.set_weighting_scheme(Xapian::BM25Weight(ranking_.k1, 0, 1, ranking_.b, ranking_.min_normlen));
        enquire.set_docid_order(Xapian::Enquire::ASCENDING);
        const Xapian::MSet matches = enquire.get_mset(0, count);
        for (auto match = matches.begin(); match != matches.end(); ++match) found.push_back(*match - 1);
      }
      give_back(std::move(database));
      return found;
    } catch (const Xapian::Error& error) {
      return xapian_status(error, path_);
    }
  }

 private:
  Xapian::Database borrow() const {
    {
      std::lock_guard lock(mutex_);
      if (!idle_.empty()) {
        Xapian::Database database = std::move(idle_.back());
        idle_.pop_back();
        return database;
      }
    }
    return Xapian::Database(path_.string());
  }

  void give_back(Xapian::Database database) const {
    std::lock_guard lock(mutex_);
    idle_.push_back(std::move(database));
  }

  const fs::path path_;
  const RankingParams ranking_;
  mutable std::mutex mutex_;
  mutable std::vector<Xapian::Database>
      idle_;  // as many as ever searched at once; a handle serves one thread at a time
};

}  // namespace

Result<std::unique_ptr<DocumentIndex>> DocumentIndex::open(std::span<const Document> documents,
                                                           const RankingParams& ranking, const fs::path& cache) {
  std::error_code error;
  fs::create_directories(cache, error);
  if (error) return errno_status(error.value(), "make the cache folder " + cache.string());
  const fs::path path = cache / index_file_name(documents, ranking);
  auto index = std::make_unique<XapianIndex>(path, ranking);
  if (!index->holds(documents.size())) {
    FLOTILLA_RETURN_IF_ERROR(build_index(documents, ranking, path));
    if (!index->holds(documents.size())) {
      return internal_error(fmt::format("index {}: not readable after it was built", path.string()));
    }
  }
  return std::unique_ptr<DocumentIndex>(std::move(index));
}

}  // namespace flotilla
