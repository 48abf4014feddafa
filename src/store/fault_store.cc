#include "store/fault_store.h"

#include <utility>

#include <fmt/format.h>

namespace flotilla {

FaultStore::FaultStore(ObjectStore& inner, FaultRates rates, std::uint64_t seed, Hook hook)
    : inner_(inner), rates_(rates), hook_(std::move(hook)), random_(seed, 0) {}

void FaultStore::crash_at(std::uint64_t index, CrashPoint point) {
  const std::lock_guard lock(mutex_);
  crash_index_ = index;
  crash_point_ = point;
}

bool FaultStore::crashed() const {
  const std::lock_guard lock(mutex_);
  return operations_ > crash_index_;
}

std::uint64_t FaultStore::operations() const {
  const std::lock_guard lock(mutex_);
  return operations_;
}

Result<FaultStore::Fate> FaultStore::next_fate(std::string_view operation, std::string_view key) {
  std::uint64_t index;
  std::uint64_t crash_index;
  CrashPoint crash_point;
  double chance;
  {
    const std::lock_guard lock(mutex_);
    index = operations_++;
    crash_index = crash_index_;
    crash_point = crash_point_;
    chance = random_.uniform();
  }
  if (index > crash_index) return Fate::kDead;
  if (hook_) FLOTILLA_RETURN_IF_ERROR(hook_({operation, key, index}));
  if (index == crash_index) {
    switch (crash_point) {
      case CrashPoint::kBefore: return Fate::kDyingBefore;
      case CrashPoint::kAfter: return Fate::kDyingAfter;
      case CrashPoint::kTorn: return Fate::kDyingTorn;
    }
  }
  const std::pair<double, Fate> fates[] = {{rates_.error, Fate::kError},
                                           {rates_.lost_answer, Fate::kLostAnswer},
                                           {rates_.torn_write, Fate::kTorn},
                                           {rates_.corrupt_read, Fate::kCorrupt}};
  for (const auto& [rate, fate] : fates) {
    chance -= rate;
    if (chance < 0) return fate;
  }
  return Fate::kNormal;
}

void FaultStore::corrupt(Bytes& bytes) {
  if (bytes.empty()) return;
  const std::lock_guard lock(mutex_);
  bytes[random_.below(bytes.size())] ^= static_cast<std::uint8_t>(1u << random_.below(8));
}

template <typename Answer, typename Operation>
Answer FaultStore::through(Fate fate, std::string_view key, Operation operation) {
  switch (fate) {
    case Fate::kDead:
    case Fate::kDyingBefore: return cancelled("simulated crash");
    case Fate::kError: return unavailable(fmt::format("'{}': simulated error", key));
    case Fate::kLostAnswer:
      (void)operation();
      return unavailable(fmt::format("'{}': simulated loss of the answer", key));
    case Fate::kDyingAfter:
    case Fate::kDyingTorn: (void)operation(); return cancelled("simulated crash");
    default: return operation();
  }
}

Result<Object> FaultStore::get(std::string_view key) {
  FLOTILLA_ASSIGN_OR_RETURN(const Fate fate, next_fate("get", key));
  auto object = through<Result<Object>>(fate, key, [&] { return inner_.get(key); });
  if (object.ok() && fate == Fate::kCorrupt) corrupt(object->bytes);
  return object;
}

Result<Bytes> FaultStore::get_range(std::string_view key, std::uint64_t offset, std::uint64_t length) {
  FLOTILLA_ASSIGN_OR_RETURN(const Fate fate, next_fate("get_range", key));
  auto bytes = through<Result<Bytes>>(fate, key, [&] { return inner_.get_range(key, offset, length); });
  if (bytes.ok() && fate == Fate::kCorrupt) corrupt(*bytes);
  return bytes;
}

Result<ObjectInfo> FaultStore::head(std::string_view key) {
  FLOTILLA_ASSIGN_OR_RETURN(const Fate fate, next_fate("head", key));
  return through<Result<ObjectInfo>>(fate, key, [&] { return inner_.head(key); });
}

template <typename Operation>
Result<ETag> FaultStore::write(std::string_view name, std::string_view key, ByteSpan bytes, bool tearable,
                               Operation operation) {
  FLOTILLA_ASSIGN_OR_RETURN(const Fate fate, next_fate(name, key));
  if (tearable && key != whole_key_ && (fate == Fate::kTorn || fate == Fate::kDyingTorn) && !bytes.empty()) {
    std::size_t part;
    {
      const std::lock_guard lock(mutex_);
      part = random_.below(bytes.size());
    }
    (void)operation(bytes.first(part));
    if (fate == Fate::kTorn) return unavailable(fmt::format("'{}': simulated torn write", key));
    return cancelled("simulated crash");
  }
  return through<Result<ETag>>(fate, key, [&] { return operation(bytes); });
}

Result<ETag> FaultStore::put_if_absent(std::string_view key, ByteSpan bytes) {
  return write("put_if_absent", key, bytes, true, [&](ByteSpan part) { return inner_.put_if_absent(key, part); });
}

Result<ETag> FaultStore::put_if_match(std::string_view key, ByteSpan bytes, const ETag& expected) {
  return write("put_if_match", key, bytes, false,
               [&](ByteSpan all) { return inner_.put_if_match(key, all, expected); });
}

Result<ETag> FaultStore::put(std::string_view key, ByteSpan bytes) {
  return write("put", key, bytes, true, [&](ByteSpan part) { return inner_.put(key, part); });
}

Result<ListPage> FaultStore::list(std::string_view prefix, std::string_view after, std::size_t limit) {
  FLOTILLA_ASSIGN_OR_RETURN(const Fate fate, next_fate("list", prefix));
  return through<Result<ListPage>>(fate, prefix, [&] { return inner_.list(prefix, after, limit); });
}

Status FaultStore::remove(std::string_view key) {
  FLOTILLA_ASSIGN_OR_RETURN(const Fate fate, next_fate("remove", key));
  return through<Status>(fate, key, [&] { return inner_.remove(key); });
}

}  // namespace flotilla
