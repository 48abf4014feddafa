#pragma once

#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <string_view>

#include "base/philox.h"
#include "store/object_store.h"

namespace flotilla {

// How often an operation goes wrong, each in [0, 1]; at most one fault an operation.
struct FaultRates {
  double error = 0;         // nothing happens; the caller sees unavailable
  double lost_answer = 0;   // it happens; the caller sees unavailable
  double torn_write = 0;    // a new object appears with a part of its bytes; the caller sees unavailable
  double corrupt_read = 0;  // one bit of what was read is wrong; the caller sees no error
};

struct StoreCall {
  std::string_view operation;  // "get", "get_range", "head", "put_if_absent", "put_if_match", "put", "list", "remove"
  std::string_view key;        // or the prefix
  std::uint64_t index = 0;     // counts the operations of this FaultStore
};

// What the last operation of a dying process leaves behind.
enum class CrashPoint { kBefore, kAfter, kTorn };

// A store that fails as networks, disks and processes do, for tests and simulations: the same seed and calls give the
// same faults. Only create-if-absent and put can be torn, against what ObjectStore promises: a conditional replacement
// is a rename everywhere. Thread safe.
class FaultStore final : public ObjectStore {
 public:
  // Called before each operation, outside of all locks: delay in it, count, or return an error, which takes the place
  // of the operation (a full disk, a read-only hub).
  using Hook = std::function<Status(const StoreCall&)>;

  FaultStore(ObjectStore& inner, FaultRates rates, std::uint64_t seed, Hook hook = nullptr);

  // This key is never torn. Call it before use.
  void never_tear(std::string key) { whole_key_ = std::move(key); }
  // The process dies at the operation with this index: from there on every call is cancelled and nothing happens.
  void crash_at(std::uint64_t index, CrashPoint point);
  bool crashed() const;
  std::uint64_t operations() const;

  Result<Object> get(std::string_view key) override;
  Result<Bytes> get_range(std::string_view key, std::uint64_t offset, std::uint64_t length) override;
  Result<ObjectInfo> head(std::string_view key) override;
  Result<ETag> put_if_absent(std::string_view key, ByteSpan bytes) override;
  Result<ETag> put_if_match(std::string_view key, ByteSpan bytes, const ETag& expected) override;
  Result<ETag> put(std::string_view key, ByteSpan bytes) override;
  Result<ListPage> list(std::string_view prefix, std::string_view after, std::size_t limit) override;
  Status remove(std::string_view key) override;

 private:
  enum class Fate { kNormal, kError, kLostAnswer, kTorn, kCorrupt, kDead, kDyingBefore, kDyingAfter, kDyingTorn };

  Result<Fate> next_fate(std::string_view operation, std::string_view key);
  void corrupt(Bytes& bytes);
  template <typename Answer, typename Operation>
  Answer through(Fate fate, std::string_view key, Operation operation);
  template <typename Operation>
  Result<ETag> write(std::string_view name, std::string_view key, ByteSpan bytes, bool tearable, Operation operation);

  ObjectStore& inner_;
  const FaultRates rates_;
  const Hook hook_;
  std::string whole_key_;
  mutable std::mutex mutex_;
  PhiloxStream random_;
  std::uint64_t operations_ = 0;
  std::uint64_t crash_index_ = ~std::uint64_t{0};
  CrashPoint crash_point_ = CrashPoint::kBefore;
};

}  // namespace flotilla
