#include "learn/replay_buffer.h"

#include <algorithm>
#include <tuple>

#include <fmt/format.h>

namespace flotilla {
namespace {

constexpr std::uint64_t kReplayFormat = 1;

void put_text(ByteWriter& writer, const std::string& text) {
  writer.put_varint(text.size());
  writer.put_bytes(as_bytes(text));
}

Result<std::string> get_text(ByteReader& reader) {
  FLOTILLA_ASSIGN_OR_RETURN(const std::uint64_t size, reader.get_varint());
  FLOTILLA_ASSIGN_OR_RETURN(const ByteSpan bytes, reader.get_bytes(size));
  return std::string(as_text(bytes));
}

Result<ReplayGroup> get_group(ByteReader& reader) {
  ReplayGroup group;
  FLOTILLA_ASSIGN_OR_RETURN(std::string id, get_text(reader));
  FLOTILLA_ASSIGN_OR_RETURN(std::string worker, get_text(reader));
  FLOTILLA_ASSIGN_OR_RETURN(group.counter, reader.get_varint());
  FLOTILLA_ASSIGN_OR_RETURN(const std::uint64_t oldest, reader.get_varint());
  FLOTILLA_ASSIGN_OR_RETURN(const std::uint64_t newest, reader.get_varint());
  FLOTILLA_ASSIGN_OR_RETURN(const std::uint64_t reuse, reader.get_varint());
  FLOTILLA_ASSIGN_OR_RETURN(group.arrival, reader.get_varint());
  if (reuse > INT32_MAX) return data_loss(fmt::format("a group was used {} times", reuse));
  group.id = GroupId(std::move(id));
  group.worker = WorkerId(std::move(worker));
  group.oldest = Version(oldest);
  group.newest = Version(newest);
  group.reuse = static_cast<std::int32_t>(reuse);
  return group;
}

}  // namespace

std::string_view admission_name(Admission admission) {
  switch (admission) {
    case Admission::kAdmitted: return "admitted";
    case Admission::kDuplicate: return "duplicate";
    case Admission::kStale: return "stale";
    case Admission::kFuture: return "of a version that was not published";
    case Admission::kOtherVersion: return "not of exactly the newest version";
    case Admission::kFull: return "the replay buffer is full";
  }
  return "";
}

Admission ReplayBuffer::admit(ReplayGroup group, Version newest) {
  if (known_.contains(group.id)) return Admission::kDuplicate;
  if (group.newest > newest) return Admission::kFuture;
  if (limits_.sequential && (group.oldest != newest || group.newest != newest)) return Admission::kOtherVersion;
  if (newest.value() - group.oldest.value() > static_cast<std::uint64_t>(limits_.max_staleness)) {
    return Admission::kStale;
  }
  if (size() >= limits_.capacity) return Admission::kFull;
  group.reuse = 0;
  group.arrival = arrivals_++;
  known_.insert(group.id);
  groups_.emplace(group.id, std::move(group));
  return Admission::kAdmitted;
}

bool ReplayBuffer::is_eligible(const ReplayGroup& group, Version newest) const {
  if (limits_.sequential && (group.oldest != newest || group.newest != newest)) return false;
  return newest.value() - group.oldest.value() <= static_cast<std::uint64_t>(limits_.max_staleness) &&
         group.reuse < limits_.max_reuse;
}

bool ReplayBuffer::comes_before(const ReplayGroup& a, const ReplayGroup& b) const {
  if (limits_.sequential) return std::tie(a.reuse, a.counter, a.worker) < std::tie(b.reuse, b.counter, b.worker);
  if (a.reuse != b.reuse) return a.reuse < b.reuse;
  return std::tie(a.oldest, a.arrival) > std::tie(b.oldest, b.arrival);
}

std::optional<std::vector<GroupId>> ReplayBuffer::draw(Version newest) const {
  std::vector<const ReplayGroup*> candidates;
  for (const auto& [id, group] : groups_) {
    if (is_eligible(group, newest)) candidates.push_back(&group);
  }
  const auto batch = static_cast<std::size_t>(limits_.batch_groups);
  if (candidates.size() < batch) return std::nullopt;
  std::sort(candidates.begin(), candidates.end(),
            [this](const ReplayGroup* a, const ReplayGroup* b) { return comes_before(*a, *b); });
  std::vector<GroupId> ids;
  for (std::size_t i = 0; i < batch; ++i) ids.push_back(candidates[i]->id);
  return ids;
}

std::vector<GroupId> ReplayBuffer::consume(const std::vector<GroupId>& ids) {
  std::vector<GroupId> used_up;
  for (const GroupId& id : ids) {
    ReplayGroup& group = groups_.at(id);
    if (++group.reuse < limits_.max_reuse) continue;
    used_up.push_back(id);
    groups_.erase(id);
  }
  return used_up;
}

std::vector<ReplayGroup> ReplayBuffer::expire(Version newest) {
  std::vector<ReplayGroup> expired;
  for (auto it = groups_.begin(); it != groups_.end();) {
    if (is_eligible(it->second, newest)) {
      ++it;
      continue;
    }
    expired.push_back(it->second);
    it = groups_.erase(it);
  }
  return expired;
}

std::int64_t ReplayBuffer::staleness(const GroupId& id, Version newest) const {
  return static_cast<std::int64_t>(newest.value() - groups_.at(id).oldest.value());
}

std::int64_t ReplayBuffer::eligible(Version newest) const {
  return std::count_if(groups_.begin(), groups_.end(),
                       [&](const auto& entry) { return is_eligible(entry.second, newest); });
}

std::int64_t ReplayBuffer::never_used(Version newest) const {
  return std::count_if(groups_.begin(), groups_.end(),
                       [&](const auto& entry) { return entry.second.reuse == 0 && is_eligible(entry.second, newest); });
}

std::int64_t ReplayBuffer::wanted(Version newest) const {
  const std::int64_t target = limits_.batch_groups + (limits_.sequential ? 0 : limits_.wanted_groups);
  return std::max<std::int64_t>(0, target - never_used(newest));
}

std::vector<ReplayGroup> ReplayBuffer::groups() const {
  std::vector<ReplayGroup> all;
  for (const auto& [id, group] : groups_) all.push_back(group);
  return all;
}

Bytes ReplayBuffer::serialize() const {
  ByteWriter writer;
  writer.put_varint(kReplayFormat);
  writer.put_varint(arrivals_);
  writer.put_varint(groups_.size());
  for (const auto& [id, group] : groups_) {
    put_text(writer, id.value());
    put_text(writer, group.worker.value());
    writer.put_varint(group.counter);
    writer.put_varint(group.oldest.value());
    writer.put_varint(group.newest.value());
    writer.put_varint(static_cast<std::uint64_t>(group.reuse));
    writer.put_varint(group.arrival);
  }
  std::vector<std::string> known;
  for (const GroupId& id : known_) known.push_back(id.value());
  std::sort(known.begin(), known.end());
  writer.put_varint(known.size());
  for (const std::string& id : known) put_text(writer, id);
  return std::move(writer).take();
}

Result<ReplayBuffer> ReplayBuffer::restore(const ReplayLimits& limits, ByteSpan bytes) {
  ReplayBuffer buffer(limits);
  ByteReader reader(bytes);
  FLOTILLA_ASSIGN_OR_RETURN(const auto format, reader.get_varint());
  if (format != kReplayFormat)
    return data_loss(fmt::format("replay buffer format {}, expected {}", format, kReplayFormat));
  FLOTILLA_ASSIGN_OR_RETURN(buffer.arrivals_, reader.get_varint());
  FLOTILLA_ASSIGN_OR_RETURN(const std::uint64_t count, reader.get_varint());
  for (std::uint64_t i = 0; i < count; ++i) {
    FLOTILLA_ASSIGN_OR_RETURN(ReplayGroup group, get_group(reader));
    if (!buffer.groups_.empty() && !(buffer.groups_.rbegin()->first < group.id)) {
      return data_loss("groups of the replay buffer are out of order");
    }
    if (group.oldest > group.newest || group.arrival >= buffer.arrivals_) {
      return data_loss(fmt::format("group {} has impossible versions or arrival", group.id.value()));
    }
    buffer.groups_.emplace(group.id, std::move(group));
  }
  FLOTILLA_ASSIGN_OR_RETURN(const std::uint64_t known, reader.get_varint());
  std::string last;
  for (std::uint64_t i = 0; i < known; ++i) {
    FLOTILLA_ASSIGN_OR_RETURN(std::string id, get_text(reader));
    if (i > 0 && id <= last) return data_loss("known groups of the replay buffer are out of order");
    last = id;
    buffer.known_.insert(GroupId(std::move(id)));
  }
  for (const auto& [id, group] : buffer.groups_) {
    if (!buffer.known_.contains(id)) return data_loss(fmt::format("group {} is held but not known", id.value()));
  }
  if (reader.remaining() != 0) return data_loss(fmt::format("{} bytes after the replay buffer", reader.remaining()));
  return buffer;
}

}  // namespace flotilla
