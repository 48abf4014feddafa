#include "hub/token_store.h"

#include <fcntl.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/rand.h>
#include <sqlite3.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <mutex>
#include <thread>

#include <fmt/format.h>

#include "base/bytes.h"
#include "base/files.h"
#include "base/hashing.h"
#include "store/file_descriptor.h"
#include "store/object_store.h"

namespace flotilla {
namespace {

namespace fs = std::filesystem;

constexpr int kSchema = 1;
constexpr std::size_t kKeyBytes = 32;
constexpr std::size_t kIdLetters = 18;  // of 5 bits
constexpr int kBusyMilliseconds = 5000;
constexpr const char* kTables =
    "CREATE TABLE IF NOT EXISTS tokens (id TEXT PRIMARY KEY, secret_sha256 TEXT NOT NULL, role TEXT NOT NULL,"
    " scope TEXT NOT NULL, worker TEXT NOT NULL, object_bytes_max INTEGER NOT NULL, requests_per_s REAL NOT NULL,"
    " written_bytes_max INTEGER NOT NULL, written_bytes INTEGER NOT NULL DEFAULT 0, created INTEGER NOT NULL,"
    " revoked INTEGER NOT NULL DEFAULT 0) STRICT, WITHOUT ROWID;"
    "CREATE TABLE IF NOT EXISTS owners (owner TEXT PRIMARY KEY, bytes_max INTEGER NOT NULL, keep_days INTEGER NOT NULL)"
    " STRICT, WITHOUT ROWID;";
constexpr std::string_view kColumns =
    "id, role, scope, worker, object_bytes_max, requests_per_s, written_bytes_max, written_bytes, created, revoked";

struct DatabaseCloser {
  void operator()(sqlite3* database) const { sqlite3_close(database); }
};
using Database = std::unique_ptr<sqlite3, DatabaseCloser>;

Status failed(sqlite3* database, std::string_view what) {
  const std::string message = fmt::format("{}: {}", what, sqlite3_errmsg(database));
  switch (sqlite3_errcode(database)) {
    case SQLITE_FULL: return resource_exhausted(message);
    case SQLITE_BUSY:
    case SQLITE_IOERR:
    case SQLITE_CANTOPEN: return unavailable(message);
    case SQLITE_READONLY:
    case SQLITE_PERM: return permission_denied(message);
    case SQLITE_CORRUPT:
    case SQLITE_NOTADB: return data_loss(message);
    default: return internal_error(message);
  }
}

// One statement: bind in order, then step until it is done.
class Statement {
 public:
  Statement(sqlite3* database, const std::string& sql) : database_(database) {
    sqlite3_prepare_v2(database, sql.c_str(), -1, &statement_, nullptr);
  }
  ~Statement() { sqlite3_finalize(statement_); }
  Statement(const Statement&) = delete;
  Statement& operator=(const Statement&) = delete;

  Statement& bind(std::string_view text) {
    if (statement_ != nullptr)
      sqlite3_bind_text(statement_, ++bound_, text.data(), static_cast<int>(text.size()), SQLITE_TRANSIENT);
    return *this;
  }
  Statement& bind(std::int64_t value) {
    if (statement_ != nullptr) sqlite3_bind_int64(statement_, ++bound_, value);
    return *this;
  }
  Statement& bind(double value) {
    if (statement_ != nullptr) sqlite3_bind_double(statement_, ++bound_, value);
    return *this;
  }
  // A row is there.
  Result<bool> step() {
    const int code = statement_ == nullptr ? SQLITE_ERROR : sqlite3_step(statement_);
    if (code == SQLITE_ROW) return true;
    if (code == SQLITE_DONE) return false;
    return failed(database_, "tokens");
  }
  std::string text(int column) const {
    const auto* bytes = reinterpret_cast<const char*>(sqlite3_column_text(statement_, column));
    return bytes == nullptr ? std::string() : bytes;
  }
  std::int64_t integer(int column) const { return sqlite3_column_int64(statement_, column); }
  double real(int column) const { return sqlite3_column_double(statement_, column); }

 private:
  sqlite3* database_;
  sqlite3_stmt* statement_ = nullptr;
  int bound_ = 0;
};

Result<Bytes> random_bytes(std::size_t count) {
  Bytes bytes(count);
  if (RAND_bytes(bytes.data(), static_cast<int>(count)) != 1) return internal_error("no random bytes");
  return bytes;
}

// The key of this hub, made by the first one who asks: it gets its name when it is whole.
Result<Bytes> read_or_make_key(const fs::path& path) {
  for (int attempt = 0; attempt < 2; ++attempt) {
    const FileDescriptor file(::open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC));
    if (file.valid()) {
      struct stat info {};
      if (::fstat(file.get(), &info) != 0) return errno_status(errno, fmt::format("look at {}", path.string()));
      if ((info.st_mode & 077) != 0) {
        return permission_denied(fmt::format("{} can be read by others; expected mode 0600", path.string()));
      }
      Bytes key(kKeyBytes + 1);
      const ssize_t count = ::read(file.get(), key.data(), key.size());
      if (count != static_cast<ssize_t>(kKeyBytes)) {
        return data_loss(fmt::format("{} is not a key of {} bytes", path.string(), kKeyBytes));
      }
      key.resize(kKeyBytes);
      return key;
    }
    if (errno != ENOENT) return errno_status(errno, fmt::format("open {}", path.string()));
    FLOTILLA_ASSIGN_OR_RETURN(const Bytes key, random_bytes(kKeyBytes));
    FLOTILLA_ASSIGN_OR_RETURN(const Bytes name, random_bytes(8));
    const fs::path fresh = fmt::format("{}.{}", path.string(), hex(name));
    const FileDescriptor made(::open(fresh.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
    if (!made.valid()) return errno_status(errno, fmt::format("make {}", fresh.string()));
    const bool written =
        ::write(made.get(), key.data(), key.size()) == static_cast<ssize_t>(key.size()) && ::fsync(made.get()) == 0;
    const int error = written && (::link(fresh.c_str(), path.c_str()) == 0 || errno == EEXIST) ? 0 : errno;
    ::unlink(fresh.c_str());
    if (error != 0) return errno_status(error, fmt::format("make {}", path.string()));
  }
  return unavailable(fmt::format("{} went away", path.string()));
}

class SqliteTokens final : public TokenStore {
 public:
  SqliteTokens(Database database, Bytes key) : database_(std::move(database)), key_(std::move(key)) {}

  Result<Issued> add(const HubGrant& grant, const TokenLimits& limits) override {
    FLOTILLA_RETURN_IF_ERROR(check_grant(grant));
    FLOTILLA_ASSIGN_OR_RETURN(const Bytes random, random_bytes(kIdLetters));
    Issued issued;
    issued.token = {.id = "FH", .grant = grant, .limits = limits};
    for (const std::uint8_t byte : random) issued.token.id += "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567"[byte & 31];
    issued.token.created = std::chrono::floor<std::chrono::seconds>(std::chrono::system_clock::now());
    issued.secret = derive(issued.token.id);
    const std::lock_guard lock(mutex_);
    Statement insert(database_.get(),
                     "INSERT INTO tokens (id, secret_sha256, role, scope, worker, object_bytes_max, requests_per_s,"
                     " written_bytes_max, created) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)");
    insert.bind(issued.token.id).bind(sha256(issued.secret).to_hex()).bind(hub_role_name(grant.role));
    insert.bind(grant.scope).bind(grant.worker).bind(static_cast<std::int64_t>(limits.object_bytes_max));
    insert.bind(limits.requests_per_s).bind(static_cast<std::int64_t>(limits.written_bytes_max));
    insert.bind(static_cast<std::int64_t>(issued.token.created.time_since_epoch().count()));
    FLOTILLA_RETURN_IF_ERROR(insert.step().status());
    return issued;
  }

  Result<std::vector<HubToken>> list() override {
    const std::lock_guard lock(mutex_);
    Statement select(database_.get(), fmt::format("SELECT {} FROM tokens ORDER BY created, id", kColumns));
    std::vector<HubToken> tokens;
    while (true) {
      FLOTILLA_ASSIGN_OR_RETURN(const bool row, select.step());
      if (!row) return tokens;
      FLOTILLA_ASSIGN_OR_RETURN(HubToken token, token_of(select));
      tokens.push_back(std::move(token));
    }
  }

  Status revoke(std::string_view id) override {
    const std::lock_guard lock(mutex_);
    Statement update(database_.get(), "UPDATE tokens SET revoked = 1 WHERE id = ?");
    FLOTILLA_RETURN_IF_ERROR(update.bind(id).step().status());
    return sqlite3_changes(database_.get()) > 0 ? ok_status() : not_found(fmt::format("there is no token {}", id));
  }

  Result<HubToken> find(std::string_view id) override {
    const std::lock_guard lock(mutex_);
    Statement select(database_.get(), fmt::format("SELECT {} FROM tokens WHERE id = ?", kColumns));
    FLOTILLA_ASSIGN_OR_RETURN(const bool row, select.bind(id).step());
    if (!row) return not_found(fmt::format("there is no token {}", id));
    return token_of(select);
  }

  Result<std::string> secret_of(std::string_view id) override {
    std::string secret = derive(id);
    const std::lock_guard lock(mutex_);
    Statement select(database_.get(), "SELECT secret_sha256 FROM tokens WHERE id = ?");
    FLOTILLA_ASSIGN_OR_RETURN(const bool row, select.bind(id).step());
    if (!row) return not_found(fmt::format("there is no token {}", id));
    if (select.text(0) != sha256(secret).to_hex()) {
      return internal_error(fmt::format("token {} was made with another hub.key", id));
    }
    return secret;
  }

  Status bind_worker(std::string_view id, std::string_view worker) override {
    const std::lock_guard lock(mutex_);
    // One statement: of several that come at once, one finds the worker empty.
    Statement update(database_.get(),
                     "UPDATE tokens SET worker = ?1 WHERE id = ?2 AND role = 'worker' AND worker IN ('', ?1)"
                     " AND (worker = ?1 OR NOT EXISTS (SELECT 1 FROM tokens AS other WHERE other.worker = ?1"
                     " AND other.role = 'worker' AND other.scope = tokens.scope AND other.revoked = 0))");
    FLOTILLA_RETURN_IF_ERROR(update.bind(worker).bind(id).step().status());
    if (sqlite3_changes(database_.get()) > 0) return ok_status();
    return permission_denied(fmt::format("this token is not worker {}'s: one token a worker", worker));
  }

  Status add_written(std::string_view id, std::uint64_t bytes) override {
    const std::lock_guard lock(mutex_);
    Statement update(database_.get(), "UPDATE tokens SET written_bytes = written_bytes + ? WHERE id = ?");
    return update.bind(static_cast<std::int64_t>(bytes)).bind(id).step().status();
  }

  Status set_owner(std::string_view owner, const OwnerLimits& limits) override {
    FLOTILLA_RETURN_IF_ERROR(check_key(owner));
    if (owner.find('/') != owner.npos) return invalid_argument(fmt::format("'{}' is not an owner", owner));
    const std::lock_guard lock(mutex_);
    Statement insert(database_.get(), "INSERT OR REPLACE INTO owners (owner, bytes_max, keep_days) VALUES (?, ?, ?)");
    insert.bind(owner).bind(static_cast<std::int64_t>(limits.bytes_max)).bind(std::int64_t{limits.keep_days});
    return insert.step().status();
  }

  Result<OwnerLimits> owner(std::string_view owner) override {
    const std::lock_guard lock(mutex_);
    Statement select(database_.get(), "SELECT bytes_max, keep_days FROM owners WHERE owner = ?");
    FLOTILLA_ASSIGN_OR_RETURN(const bool row, select.bind(owner).step());
    if (!row) return OwnerLimits{};
    return OwnerLimits{static_cast<std::uint64_t>(select.integer(0)), static_cast<int>(select.integer(1))};
  }

 private:
  // 256 bits that only the key gives, in the letters that clients' configuration files take.
  std::string derive(std::string_view id) const {
    const std::string message = fmt::format("flotilla hub token 1\n{}", id);
    std::array<std::uint8_t, 32> digest{};
    unsigned int size = 0;
    FLOTILLA_CHECK(HMAC(EVP_sha256(), key_.data(), static_cast<int>(key_.size()), as_bytes(message).data(),
                        message.size(), digest.data(), &size) != nullptr);
    std::string secret = base64(digest);
    for (char& c : secret) c = c == '+' ? '-' : c == '/' ? '_' : c;
    while (secret.ends_with('=')) secret.pop_back();
    return secret;
  }

  static Result<HubToken> token_of(const Statement& row) {
    HubToken token;
    token.id = row.text(0);
    FLOTILLA_ASSIGN_OR_RETURN(token.grant.role, parse_hub_role(row.text(1)));
    token.grant.scope = row.text(2);
    token.grant.worker = row.text(3);
    token.limits = {static_cast<std::uint64_t>(row.integer(4)), row.real(5),
                    static_cast<std::uint64_t>(row.integer(6))};
    token.written_bytes = static_cast<std::uint64_t>(row.integer(7));
    token.created = std::chrono::sys_seconds(std::chrono::seconds(row.integer(8)));
    token.revoked = row.integer(9) != 0;
    return token;
  }

  std::mutex mutex_;  // guards the database
  const Database database_;
  const Bytes key_;
};

}  // namespace

Result<std::unique_ptr<TokenStore>> TokenStore::open(const fs::path& folder) {
  if (::mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST) {
    return errno_status(errno, fmt::format("make the hub's state folder {}", folder.string()));
  }
  FLOTILLA_ASSIGN_OR_RETURN(Bytes key, read_or_make_key(folder / "hub.key"));
  sqlite3* opened = nullptr;
  const int code = sqlite3_open_v2((folder / "hub.db").c_str(), &opened,
                                   SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_NOFOLLOW, nullptr);
  Database database(opened);
  if (code != SQLITE_OK) return failed(opened, fmt::format("open {}", (folder / "hub.db").string()));
  ::chmod((folder / "hub.db").c_str(), 0600);
  sqlite3_busy_timeout(opened, kBusyMilliseconds);
  const auto run = [&](const std::string& sql) -> Status {
    if (sqlite3_exec(opened, sql.c_str(), nullptr, nullptr, nullptr) == SQLITE_OK) return ok_status();
    return failed(opened, (folder / "hub.db").string());
  };
  // SQLite does not wait for others who change the journal's mode at the same time.
  const auto last = std::chrono::steady_clock::now() + std::chrono::milliseconds(kBusyMilliseconds);
  Status journal = run("PRAGMA journal_mode = WAL; PRAGMA synchronous = NORMAL;");
  while (sqlite3_errcode(opened) == SQLITE_BUSY && std::chrono::steady_clock::now() < last) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
    journal = run("PRAGMA journal_mode = WAL; PRAGMA synchronous = NORMAL;");
  }
  FLOTILLA_RETURN_IF_ERROR(journal);
  {
    Statement version(opened, "PRAGMA user_version");
    FLOTILLA_RETURN_IF_ERROR(version.step().status());
    if (version.integer(0) > kSchema) {
      return invalid_argument(fmt::format("{} is of a newer Flotilla (schema {}; this one knows {})",
                                          (folder / "hub.db").string(), version.integer(0), kSchema));
    }
  }
  FLOTILLA_RETURN_IF_ERROR(run(kTables));
  FLOTILLA_RETURN_IF_ERROR(run(fmt::format("PRAGMA user_version = {}", kSchema)));
  return std::unique_ptr<TokenStore>(std::make_unique<SqliteTokens>(std::move(database), std::move(key)));
}

}  // namespace flotilla
