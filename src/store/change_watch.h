#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <optional>
#include <thread>

#include "store/object_store.h"

namespace flotilla {

// Asks a server for the next state of one object, on a thread of its own: who waits may leave and come back, while the
// request and its connection stay. Asks for nothing that nobody waits for, once a request has ended. Thread safe,
// and of one who waits at a time: of two, one is told, and the other hears nothing until its time is over.
class ChangeWatch {
 public:
  // One request: the object when its tag is not `known`; nothing when it is, after as long as the server waits.
  using Ask = std::function<Result<std::optional<Object>>(const ETag& known, const std::stop_token& stop)>;

  explicit ChangeWatch(Ask ask);
  // Ends the request under way.
  ~ChangeWatch();
  ChangeWatch(const ChangeWatch&) = delete;
  ChangeWatch& operator=(const ChangeWatch&) = delete;

  // As ObjectStore::get_when_changed(). A server that does not wait is asked once in `watching.look`.
  Result<std::optional<Object>> wait(const ETag& known, const Watching& watching);

 private:
  struct Answer {
    ETag known;
    Result<std::optional<Object>> result;
  };
  void work(const std::stop_token& stop);

  const Ask ask_;
  std::mutex mutex_;  // for all below
  std::condition_variable_any changed_;
  int waiting_ = 0;
  std::optional<ETag> wanted_;  // the state whose successor is asked for
  std::chrono::milliseconds look_{0};
  std::optional<Answer> answer_;

  std::jthread thread_;
};

}  // namespace flotilla
