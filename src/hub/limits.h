#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>

#include "base/status.h"

namespace flotilla {

// Lets `rate` a second through, and `burst` at once after a pause. Time is an argument and never goes back.
class TokenBucket {
 public:
  TokenBucket(double rate, double burst) : rate_(rate), burst_(burst), level_(burst) {}
  bool take(std::chrono::nanoseconds now);
  // Nobody could tell it from a new one.
  bool is_full(std::chrono::nanoseconds now) const { return level(now) >= burst_; }

 private:
  double level(std::chrono::nanoseconds now) const;
  const double rate_;
  const double burst_;
  double level_;
  std::chrono::nanoseconds last_{0};
};

// One bucket a name; names that are not heard of any more are forgotten. Thread safe.
class Throttle {
 public:
  // With two seconds' worth of burst.
  bool take(const std::string& name, double rate, std::chrono::nanoseconds now);

 private:
  std::mutex mutex_;
  std::map<std::string, TokenBucket> buckets_;
};

// Bytes in use, and bytes held for what is on its way, by name. Thread safe.
class Ledger {
 public:
  // resource_exhausted when used and held bytes would pass `limit` (0: none).
  Status hold(const std::string& name, std::uint64_t bytes, std::uint64_t limit);
  // Gives back what was held, and changes the use.
  void settle(const std::string& name, std::uint64_t held, std::int64_t used);
  // A look at the files begins; what it has found. What grew meanwhile is added: it may or may not have been seen, and
  // too much until the next look is better than too little.
  void begin_count();
  void set_used(const std::map<std::string, std::uint64_t>& used);
  std::map<std::string, std::uint64_t> used() const;

 private:
  struct Account {
    std::uint64_t used = 0;
    std::uint64_t held = 0;
    std::uint64_t grown = 0;  // since the last begin_count
  };
  mutable std::mutex mutex_;
  std::map<std::string, Account> accounts_;
};

// At most one line a minute for each name, with the number of those left out: strangers must not fill a disk. Thread
// safe.
class QuietLog {
 public:
  void warn(const std::string& name, const std::string& text, std::chrono::nanoseconds now);

 private:
  struct Line {
    std::chrono::nanoseconds last{0};
    std::uint64_t left_out = 0;
  };
  std::mutex mutex_;
  std::map<std::string, Line> lines_;
};

}  // namespace flotilla
