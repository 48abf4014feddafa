#pragma once

#include <memory>
#include <string>

namespace flotilla {

// A folder that is served by a hub server. Its header stands apart: two modules have an Environment.
class ServedHub {
 public:
  static std::unique_ptr<ServedHub> start();
  virtual ~ServedHub() = default;
  virtual std::string folder() const = 0;
  virtual std::string address() const = 0;
  // From now on this process is the worker: its key's id and secret are in the environment.
  virtual void be_worker(const std::string& run, const std::string& worker) = 0;
};

}  // namespace flotilla
