#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <thread>

namespace flotilla {

// Looks at what somebody waits for, once for all who wait for the same, and tells them of a change. It has to look:
// other processes write the folder too. Of more than kKeysMax keys at once the later ones ring no more: who waits for
// one looks itself, now and then. Thread safe.
class KeyWatch {
 public:
  static constexpr std::size_t kKeysMax = 64;
  // Something that is another after each change of the key's object.
  using Look = std::function<std::string(const std::string& key)>;

  explicit KeyWatch(Look look, std::chrono::milliseconds interval = std::chrono::milliseconds(25));
  ~KeyWatch();
  KeyWatch(const KeyWatch&) = delete;
  KeyWatch& operator=(const KeyWatch&) = delete;

  // Until it goes, `ring` is called after each change that happens from now on, by another thread; it must not wait.
  class Waiter {
   public:
    Waiter(KeyWatch& watch, const std::string& key, std::function<void()> ring);
    ~Waiter();
    Waiter(const Waiter&) = delete;
    Waiter& operator=(const Waiter&) = delete;

   private:
    KeyWatch& watch_;
    const std::string key_;
    const std::uint64_t number_;
  };

 private:
  struct Watched {
    std::string state;
    std::map<std::uint64_t, std::function<void()>> rings;
  };
  std::uint64_t add(const std::string& key, std::function<void()> ring);
  void remove(const std::string& key, std::uint64_t number);
  void work(const std::stop_token& stop);

  const Look look_;
  const std::chrono::milliseconds interval_;
  std::mutex mutex_;  // for all below
  std::condition_variable_any changed_;
  std::map<std::string, Watched> watched_;
  std::uint64_t next_ = 0;

  std::jthread thread_;
};

}  // namespace flotilla
