#include "cli/stop_signals.h"

#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <condition_variable>
#include <mutex>

namespace flotilla {
namespace {

sigset_t watched() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGINT);
  sigaddset(&set, SIGTERM);
  sigaddset(&set, SIGUSR2);  // sent by the destructor, to end the watching thread
  return set;
}

}  // namespace

StopSignals::StopSignals() {
  const sigset_t set = watched();
  ::pthread_sigmask(SIG_BLOCK, &set, nullptr);
  thread_ = std::jthread([this] { watch(); });
}

StopSignals::~StopSignals() {
  ::pthread_kill(thread_.native_handle(), SIGUSR2);
  thread_.join();
}

void StopSignals::wait() const {
  std::mutex mutex;
  std::condition_variable_any stopped;
  std::unique_lock lock(mutex);
  stopped.wait(lock, token(), [] { return false; });
}

void StopSignals::watch() {
  const sigset_t set = watched();
  for (;;) {
    int signal = 0;
    if (::sigwait(&set, &signal) != 0 || signal == SIGUSR2) return;
    if (source_.stop_requested()) ::_exit(128 + signal);
    source_.request_stop();
  }
}

}  // namespace flotilla
