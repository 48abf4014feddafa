#pragma once

#include <compare>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>

namespace flotilla {

// A number or a name that must not be mistaken for another one: no implicit conversion in or out.
template <typename Tag, typename Value>
class StrongId {
 public:
  StrongId() = default;
  explicit StrongId(Value value) : value_(std::move(value)) {}
  const Value& value() const { return value_; }
  auto operator<=>(const StrongId&) const = default;

 private:
  Value value_{};
};

using Version = StrongId<struct VersionTag, std::uint64_t>;        // a published state of the weights
using Generation = StrongId<struct GenerationTag, std::uint64_t>;  // which learner may write `head`
using WorkerId = StrongId<struct WorkerTag, std::string>;          // hex of the hash of the worker's public key
using OperatorId = StrongId<struct OperatorTag, std::string>;      // who a worker belongs to
using GroupId = StrongId<struct GroupTag, std::string>;            // hex, derived from run, task, attempt and worker
using TokenId = std::int32_t;                                      // index into the vocabulary; arithmetic is common

// "0000000012": keys sort as their numbers do.
std::string padded(std::uint64_t number);
inline std::string padded(Version version) { return padded(version.value()); }

}  // namespace flotilla

template <typename Tag, typename Value>
struct std::hash<flotilla::StrongId<Tag, Value>> {
  std::size_t operator()(const flotilla::StrongId<Tag, Value>& id) const { return std::hash<Value>{}(id.value()); }
};
