#include "hub/limits.h"

#include <algorithm>

#include <fmt/format.h>

#include "base/log.h"

namespace flotilla {
namespace {

constexpr double kBurstSeconds = 2;
constexpr std::size_t kNamesMax = 4096;  // of throttles and log lines; strangers choose some of them
constexpr std::chrono::minutes kLogPause{1};

}  // namespace

double TokenBucket::level(std::chrono::nanoseconds now) const {
  return std::min(burst_, level_ + std::chrono::duration<double>(now - last_).count() * rate_);
}

bool TokenBucket::take(std::chrono::nanoseconds now) {
  level_ = level(now);
  last_ = now;
  if (level_ < 1) return false;
  level_ -= 1;
  return true;
}

bool Throttle::take(const std::string& name, double rate, std::chrono::nanoseconds now) {
  const std::lock_guard lock(mutex_);
  if (buckets_.size() >= kNamesMax) {
    std::erase_if(buckets_, [&](const auto& entry) { return entry.second.is_full(now); });
    if (buckets_.size() >= kNamesMax && !buckets_.contains(name)) return false;
  }
  const double burst = std::max(1.0, rate * kBurstSeconds);
  return buckets_.try_emplace(name, rate, burst).first->second.take(now);
}

Status Ledger::hold(const std::string& name, std::uint64_t bytes, std::uint64_t limit) {
  const std::lock_guard lock(mutex_);
  Account& account = accounts_[name];
  if (limit > 0 && account.used + account.held + bytes > limit) {
    return resource_exhausted(fmt::format("{} has room for {} more bytes and {} are asked for", name,
                                          limit - std::min(limit, account.used + account.held), bytes));
  }
  account.held += bytes;
  return ok_status();
}

void Ledger::settle(const std::string& name, std::uint64_t held, std::int64_t used) {
  const std::lock_guard lock(mutex_);
  Account& account = accounts_[name];
  account.held -= std::min(account.held, held);
  const auto now = static_cast<std::int64_t>(account.used) + used;
  account.used = static_cast<std::uint64_t>(std::max<std::int64_t>(now, 0));
  account.grown += static_cast<std::uint64_t>(std::max<std::int64_t>(used, 0));
}

void Ledger::begin_count() {
  const std::lock_guard lock(mutex_);
  for (auto& [name, account] : accounts_) account.grown = 0;
}

void Ledger::set_used(const std::map<std::string, std::uint64_t>& used) {
  const std::lock_guard lock(mutex_);
  for (auto& [name, account] : accounts_) account.used = account.grown;
  for (const auto& [name, bytes] : used) accounts_[name].used += bytes;
}

std::map<std::string, std::uint64_t> Ledger::used() const {
  const std::lock_guard lock(mutex_);
  std::map<std::string, std::uint64_t> used;
  for (const auto& [name, account] : accounts_) used[name] = account.used;
  return used;
}

void QuietLog::warn(const std::string& name, const std::string& text, std::chrono::nanoseconds now) {
  std::uint64_t left_out = 0;
  {
    const std::lock_guard lock(mutex_);
    if (lines_.size() >= kNamesMax) {
      std::erase_if(lines_, [&](const auto& line) { return now - line.second.last > kLogPause; });
    }
    if (lines_.size() >= kNamesMax && !lines_.contains(name)) return;
    const auto [line, fresh] = lines_.try_emplace(name);
    if (!fresh && now - line->second.last < kLogPause) {
      ++line->second.left_out;
      return;
    }
    left_out = std::exchange(line->second.left_out, 0);
    line->second.last = now;
  }
  log_warning("hub", "{}{}", text, left_out > 0 ? fmt::format(" ({} more since the last line)", left_out) : "");
}

}  // namespace flotilla
