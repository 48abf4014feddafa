// Stands before a server of this machine and is a bad network for each request of HTTP by chance:
//
//   net_proxy PORT [--errors SHARE] [--lost SHARE] [--cut SHARE] [--trickle SHARE] [--hang SHARE] [--seed N]
//
// Prints its own port, and how often it did what when its standard input ends. After the line "calm" there it does
// nothing more to new requests.
#include <fmt/format.h>
#include <unistd.h>
#include <CLI/CLI.hpp>

#include <array>
#include <cstdio>
#include <map>
#include <mutex>
#include <utility>

#include "base/philox.h"
#include "fault_proxy.h"

namespace {

using flotilla::Fault;

struct Shares {
  double errors = 0;   // a third each: closed at once, 500, 503
  double lost = 0;     // the server has done it, and the answer is lost
  double cut = 0;      // in the middle of the answer
  double trickle = 0;  // a byte each 10 ms
  double hang = 0;     // half-open: nothing comes, and nobody says so
};

std::string error_text(std::string_view status, std::string_view code) {
  const std::string body = fmt::format("<Error><Code>{}</Code><Message>no</Message></Error>", code);
  return fmt::format("HTTP/1.1 {}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{}", status, body.size(), body);
}

class Chance {
 public:
  Chance(Shares shares, std::uint64_t seed) : shares_(shares), random_(seed, 0) {}

  void calm() {
    const std::lock_guard lock(mutex_);
    calm_ = true;
  }

  Fault draw() {
    const std::lock_guard lock(mutex_);
    if (calm_) return {};
    double left = random_.uniform();
    const auto falls = [&](double share) { return (left -= share) < 0; };
    if (falls(shares_.errors)) {
      switch (random_.below(3)) {
        case 0: return counted("refused", {.kind = Fault::kRefuse});
        case 1: return counted("error 500", {.kind = Fault::kAnswer, .text = error_text("500 No", "InternalError")});
        default: return counted("error 503", {.kind = Fault::kAnswer, .text = error_text("503 No", "SlowDown")});
      }
    }
    if (falls(shares_.lost)) return counted("answer lost", {.kind = Fault::kLoseAnswer});
    if (falls(shares_.cut)) return counted("answer cut", {.kind = Fault::kCutAnswer, .bytes = 1 + random_.below(5000)});
    if (falls(shares_.trickle)) return counted("trickled", {.kind = Fault::kTrickle});
    if (falls(shares_.hang)) return counted("half-open", {.kind = Fault::kHang});
    return counted("as it is", {});
  }

  void print() {
    const std::lock_guard lock(mutex_);
    for (const auto& [what, times] : counts_) fmt::print("{}: {}\n", what, times);
  }

 private:
  Fault counted(const std::string& what, Fault fault) {
    ++counts_[what];
    return fault;
  }

  const Shares shares_;
  std::mutex mutex_;
  bool calm_ = false;
  flotilla::PhiloxStream random_;
  std::map<std::string, int> counts_;
};

}  // namespace

int main(int count, char** arguments) {
  std::uint16_t port = 0;
  std::uint64_t seed = 1;
  Shares shares;
  CLI::App app("A bad network");
  app.add_option("PORT", port)->required();
  app.add_option("--errors", shares.errors);
  app.add_option("--lost", shares.lost);
  app.add_option("--cut", shares.cut);
  app.add_option("--trickle", shares.trickle);
  app.add_option("--hang", shares.hang);
  app.add_option("--seed", seed);
  CLI11_PARSE(app, count, arguments);
  Chance chance(shares, seed);
  {
    const flotilla::FaultProxy proxy(port, [&chance] { return chance.draw(); });
    fmt::print("{}\n", proxy.port());
    std::fflush(stdout);
    for (std::array<char, 64> line; ::read(STDIN_FILENO, line.data(), line.size()) > 0;) chance.calm();
  }
  chance.print();
  return 0;
}
