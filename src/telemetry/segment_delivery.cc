#include "telemetry/segment_delivery.h"

#include <algorithm>
#include <charconv>
#include <chrono>

#include <fmt/format.h>

#include "base/clock.h"
#include "base/files.h"
#include "base/log.h"
#include "base/philox.h"
#include "telemetry/event_folder.h"

namespace flotilla {
namespace {

constexpr std::chrono::duration<double> kFirstPause{1};
constexpr std::chrono::duration<double> kLongestPause{60};

std::filesystem::path mark_path(const std::filesystem::path& folder) { return folder / "delivered"; }

// A mark that is missing or unreadable costs deliveries that are answered with already_exists, and nothing else.
std::uint64_t read_mark(const std::filesystem::path& folder) {
  const auto text = read_text_file(mark_path(folder));
  std::uint64_t number = 0;
  if (text.ok()) std::from_chars(text->data(), text->data() + text->size(), number);
  return number;
}

}  // namespace

SegmentDelivery::SegmentDelivery(std::filesystem::path folder, std::uint64_t closed, DeliverSegment deliver)
    : folder_(std::move(folder)),
      deliver_(std::move(deliver)),
      closed_(closed),
      delivered_(std::min(read_mark(folder_), closed)),
      thread_([this] { work(); }) {}

SegmentDelivery::~SegmentDelivery() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_all();
}

void SegmentDelivery::close_below(std::uint64_t end) {
  {
    const std::lock_guard lock(mutex_);
    closed_ = std::max(closed_, end);
  }
  wake_.notify_all();
}

std::uint64_t SegmentDelivery::delivered() const {
  const std::lock_guard lock(mutex_);
  return delivered_;
}

Status SegmentDelivery::deliver_segment(std::uint64_t number) const {
  const auto bytes = read_file(segment_path(folder_, number));
  // A number without a file: its segment was removed, or a crash came between taking the number and the first event.
  if (!bytes.ok()) return bytes.status().code() == StatusCode::kNotFound ? ok_status() : bytes.status();
  Status status = deliver_(number, *bytes);
  if (!status.ok() && status.code() != StatusCode::kAlreadyExists) return status;
  return write_file_atomically(mark_path(folder_), fmt::format("{}\n", number + 1));
}

void SegmentDelivery::work() {
  PhiloxStream random(static_cast<std::uint64_t>(system_clock().monotonic().count()), 0);
  std::chrono::duration<double> pause = kFirstPause;
  std::unique_lock lock(mutex_);
  for (;;) {
    wake_.wait(lock, [&] { return stopping_ || delivered_ < closed_; });
    if (delivered_ == closed_) return;
    const std::uint64_t number = delivered_;
    lock.unlock();
    const Status status = deliver_segment(number);
    lock.lock();
    if (status.ok()) {
      delivered_ = number + 1;
      pause = kFirstPause;
      continue;
    }
    log_warning("events", "segment {} is not delivered: {}", number, status.to_string());
    if (stopping_) return;
    wake_.wait_for(lock, pause * (0.75 + 0.5 * random.uniform()), [&] { return stopping_; });
    pause = std::min(pause * 2, kLongestPause);
  }
}

}  // namespace flotilla
