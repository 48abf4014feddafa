#include "hub/key_watch.h"

#include <vector>

namespace flotilla {

KeyWatch::KeyWatch(Look look, std::chrono::milliseconds interval) : look_(std::move(look)), interval_(interval) {
  thread_ = std::jthread([this](const std::stop_token& stop) { work(stop); });
}

KeyWatch::~KeyWatch() {
  thread_.request_stop();
  thread_.join();
}

KeyWatch::Waiter::Waiter(KeyWatch& watch, const std::string& key, std::function<void()> ring)
    : watch_(watch), key_(key), number_(watch.add(key, std::move(ring))) {}

KeyWatch::Waiter::~Waiter() { watch_.remove(key_, number_); }

std::uint64_t KeyWatch::add(const std::string& key, std::function<void()> ring) {
  {
    const std::lock_guard lock(mutex_);
    if (const auto found = watched_.find(key); found != watched_.end()) {
      found->second.rings.emplace(++next_, std::move(ring));
      return next_;
    }
    if (watched_.size() >= kKeysMax) return 0;
  }
  std::string state = look_(key);
  const std::lock_guard lock(mutex_);
  // Who came first has the older state, and so misses nothing.
  watched_.try_emplace(key, Watched{std::move(state), {}}).first->second.rings.emplace(++next_, std::move(ring));
  changed_.notify_all();
  return next_;
}

void KeyWatch::remove(const std::string& key, std::uint64_t number) {
  if (number == 0) return;  // it never rang
  const std::lock_guard lock(mutex_);
  const auto found = watched_.find(key);
  found->second.rings.erase(number);
  if (found->second.rings.empty()) watched_.erase(found);
}

void KeyWatch::work(const std::stop_token& stop) {
  std::unique_lock lock(mutex_);
  while (changed_.wait(lock, stop, [this] { return !watched_.empty(); })) {
    changed_.wait_for(lock, stop, interval_, [] { return false; });
    std::vector<std::pair<std::string, std::string>> states;
    for (const auto& [key, watched] : watched_) states.emplace_back(key, "");
    lock.unlock();
    for (auto& [key, state] : states) state = look_(key);
    lock.lock();
    for (auto& [key, state] : states) {
      const auto found = watched_.find(key);
      if (found == watched_.end() || found->second.state == state) continue;
      found->second.state = std::move(state);
      for (const auto& [number, ring] : found->second.rings) ring();
    }
  }
}

}  // namespace flotilla
