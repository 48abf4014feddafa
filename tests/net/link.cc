// A link between two network namespaces that takes its time: packets of one side come out at the other after a delay.
// Kernels without netem have no such thing, and a proxy of connections would hide handshakes and slow start.
//
//   net_link NAMESPACE DELAY_MS
//
// Makes the interfaces "cloud" in its own namespace and "home" in NAMESPACE (a path), prints "ready", and passes
// packets until its standard input ends. A line "cut MS" there drops all packets for so long.
#include <fcntl.h>
#include <linux/if_tun.h>
#include <net/if.h>
#include <poll.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <array>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <string>
#include <string_view>
#include <vector>

namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr std::size_t kPacketMax = 65536;
constexpr std::size_t kQueueMax = 20'000;  // packets; the shaper in front holds the queue that counts

struct Packet {
  Clock::time_point due;
  std::vector<char> bytes;
};

[[noreturn]] void fail(const char* what) {
  std::perror(what);
  std::exit(1);
}

int make_interface(const char* name) {
  const int device = ::open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC);
  if (device < 0) fail("/dev/net/tun");
  ifreq request{};
  request.ifr_flags = IFF_TUN | IFF_NO_PI;
  std::strncpy(request.ifr_name, name, IFNAMSIZ - 1);
  if (::ioctl(device, TUNSETIFF, &request) != 0) fail("TUNSETIFF");
  return device;
}

void take_packets(int from, std::deque<Packet>& queue, milliseconds delay, bool cut) {
  std::array<char, kPacketMax> buffer;
  while (true) {
    const auto got = ::read(from, buffer.data(), buffer.size());
    if (got <= 0) return;
    if (cut || queue.size() == kQueueMax) continue;
    queue.push_back({Clock::now() + delay, {buffer.data(), buffer.data() + got}});
  }
}

void give_packets(std::deque<Packet>& queue, int to) {
  for (; !queue.empty() && queue.front().due <= Clock::now(); queue.pop_front()) {
    [[maybe_unused]] const auto written = ::write(to, queue.front().bytes.data(), queue.front().bytes.size());
  }
}

timespec until_next(const std::deque<Packet>& a, const std::deque<Packet>& b) {
  auto time = std::chrono::nanoseconds(std::chrono::seconds(1));
  for (const auto* queue : {&a, &b}) {
    if (!queue->empty()) time = std::min(time, std::chrono::nanoseconds(queue->front().due - Clock::now()));
  }
  time = std::max(time, std::chrono::nanoseconds(0));
  return {time.count() / 1'000'000'000, time.count() % 1'000'000'000};
}

int number(std::string_view text) {
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) {
    std::fprintf(stderr, "net_link: '%s' is no number\n", std::string(text).c_str());
    std::exit(2);
  }
  return value;
}

}  // namespace

int main(int count, char** arguments) {
  if (count != 3) {
    std::fprintf(stderr, "usage: net_link NAMESPACE DELAY_MS\n");
    return 2;
  }
  const milliseconds delay(number(arguments[2]));
  const int cloud = make_interface("cloud");
  const int other = ::open(arguments[1], O_RDONLY | O_CLOEXEC);
  if (other < 0 || ::setns(other, CLONE_NEWNET) != 0) fail(arguments[1]);
  const int home = make_interface("home");
  std::puts("ready");
  std::fflush(stdout);

  std::deque<Packet> down, up;
  std::string commands;
  Clock::time_point cut_until;
  while (true) {
    std::array<pollfd, 3> events{{{STDIN_FILENO, POLLIN, 0}, {cloud, POLLIN, 0}, {home, POLLIN, 0}}};
    const timespec time = until_next(down, up);
    if (::ppoll(events.data(), events.size(), &time, nullptr) < 0) fail("ppoll");
    if (events[0].revents != 0) {
      std::array<char, 256> text;
      const auto got = ::read(STDIN_FILENO, text.data(), text.size());
      if (got <= 0) return 0;
      commands.append(text.data(), static_cast<std::size_t>(got));
      for (std::size_t end; (end = commands.find('\n')) != commands.npos; commands.erase(0, end + 1)) {
        const std::string_view command = std::string_view(commands).substr(0, end);
        if (!command.starts_with("cut ")) return 2;
        cut_until = Clock::now() + milliseconds(number(command.substr(4)));
      }
    }
    const bool cut = Clock::now() < cut_until;
    take_packets(cloud, down, delay, cut);
    take_packets(home, up, delay, cut);
    give_packets(down, home);
    give_packets(up, cloud);
  }
}
