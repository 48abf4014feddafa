#include "telemetry/event_log.h"

#include <algorithm>

#include <fmt/format.h>

#include "base/files.h"
#include "base/log.h"
#include "telemetry/append_file.h"
#include "telemetry/event_folder.h"
#include "telemetry/event_record.h"

namespace flotilla {
namespace {

// Minutes of a busy writer. Beyond it the disk hangs, and memory must not grow with it.
constexpr std::size_t kQueueEvents = 1 << 16;

// Where the writer's earlier lives stopped counting. A corrupt line must not keep a run from starting again.
Result<std::uint64_t> next_sequence(const std::filesystem::path& folder, const std::vector<SegmentInfo>& segments) {
  for (auto segment = segments.rbegin(); segment != segments.rend(); ++segment) {
    FLOTILLA_ASSIGN_OR_RETURN(const std::string text, read_text_file(segment_path(folder, segment->number)));
    std::string_view rest = text;
    for (std::size_t end; (end = rest.rfind('\n')) != std::string_view::npos; rest = rest.substr(0, end)) {
      const std::size_t begin = end == 0 ? std::string_view::npos : rest.rfind('\n', end - 1);
      const auto record = parse_event_line(rest.substr(begin + 1, end - begin - 1));
      if (record.ok()) return record->sequence + 1;
    }
  }
  return std::uint64_t{0};
}

}  // namespace

// The files of the log, without queue and thread.
class EventLog::Segments {
 public:
  static Result<std::unique_ptr<Segments>> open(EventLogOptions options, const Clock& clock) {
    std::error_code error;
    std::filesystem::create_directories(options.folder, error);
    if (error) return errno_status(error.value(), "create folder " + options.folder.string());
    FLOTILLA_ASSIGN_OR_RETURN(auto lock, FolderLock::acquire(options.folder));
    FLOTILLA_ASSIGN_OR_RETURN(const auto segments, list_segments(options.folder));
    auto result = std::unique_ptr<Segments>(new Segments(std::move(options), clock));
    result->lock_ = std::move(lock);
    FLOTILLA_ASSIGN_OR_RETURN(result->sequence_, next_sequence(result->options_.folder, segments));
    if (!segments.empty()) result->next_number_ = segments.back().number + 1;
    if (result->options_.deliver) {
      result->delivery_ =
          std::make_unique<SegmentDelivery>(result->options_.folder, result->next_number_, result->options_.deliver);
    }
    return result;
  }

  // Writes the event, after a word on those that were lost before it. A failure loses it.
  void write(const Pending& pending) {
    if (lost_ > 0) {
      const Pending word{{"log.lost", {{"events", lost_}}}, pending.time, pending.monotonic};
      if (try_write(word)) lost_ = 0;
    }
    if (lost_ > 0 || !try_write(pending)) lose(1, error_);
  }
  void lose(std::uint64_t events, const Status& cause) {
    if (events > 0) cause_ = cause;
    lost_ += events;
    lost_since_flush_ += events;
  }

  Status flush() {
    Status status = file_ ? file_->sync() : ok_status();
    const std::uint64_t lost = std::exchange(lost_since_flush_, 0);
    if (status.ok() && lost > 0) status = cause_.with_context(fmt::format("{} events are lost", lost));
    return status;
  }

  void close_segment() {
    if (!file_) return;
    if (const Status status = file_->sync(); !status.ok()) report(status);
    file_ = nullptr;
    if (delivery_) delivery_->close_below(next_number_);
  }

  // When the open segment is to be closed for its age.
  std::optional<std::chrono::nanoseconds> due() const {
    if (!file_ || options_.segment_age.count() == 0) return std::nullopt;
    return opened_ + options_.segment_age;
  }

 private:
  Segments(EventLogOptions options, const Clock& clock) : options_(std::move(options)), clock_(clock) {}

  bool try_write(const Pending& pending) {
    const std::string line = event_line({pending.time, pending.monotonic, options_.writer, sequence_, pending.event});
    if (file_ && file_->size() + line.size() > options_.segment_bytes) close_segment();
    Status status = file_ ? ok_status() : open_segment();
    if (status.ok()) status = file_->append(line);
    if (!status.ok()) {
      if (status.code() == StatusCode::kDataLoss) close_segment();
      report(status);
      return false;
    }
    error_ = ok_status();
    ++sequence_;
    return true;
  }

  Status open_segment() {
    FLOTILLA_RETURN_IF_ERROR(make_room());
    FLOTILLA_ASSIGN_OR_RETURN(file_, AppendFile::create(segment_path(options_.folder, next_number_)));
    ++next_number_;
    opened_ = clock_.monotonic();
    return ok_status();
  }

  Status make_room() {
    FLOTILLA_ASSIGN_OR_RETURN(const auto segments, list_segments(options_.folder));
    std::uint64_t bytes = options_.segment_bytes;
    for (const SegmentInfo& segment : segments) bytes += segment.bytes;
    for (const SegmentInfo& segment : segments) {
      if (bytes <= options_.folder_bytes) break;
      if (delivery_ && segment.number >= delivery_->delivered()) break;
      std::error_code error;
      std::filesystem::remove(segment_path(options_.folder, segment.number), error);
      if (error) return errno_status(error.value(), "remove " + segment_path(options_.folder, segment.number).string());
      bytes -= segment.bytes;
    }
    if (bytes <= options_.folder_bytes) return ok_status();
    return resource_exhausted(fmt::format("{} would hold {} bytes that are not delivered; the limit is {}",
                                          options_.folder.string(), bytes, options_.folder_bytes));
  }

  // Once for each failure in a row.
  void report(const Status& status) {
    if (error_.ok()) log_error("events", "events are being lost: {}", status.to_string());
    error_ = status;
  }

  const EventLogOptions options_;
  const Clock& clock_;
  std::unique_ptr<FolderLock> lock_;
  std::unique_ptr<SegmentDelivery> delivery_;
  std::unique_ptr<AppendFile> file_;
  std::chrono::nanoseconds opened_{0};
  std::uint64_t next_number_ = 0;
  std::uint64_t sequence_ = 0;
  std::uint64_t lost_ = 0;
  std::uint64_t lost_since_flush_ = 0;
  Status error_;  // of the last write
  Status cause_;  // of the last loss
};

Result<std::unique_ptr<EventLog>> EventLog::open(EventLogOptions options, const Clock& clock) {
  FLOTILLA_ASSIGN_OR_RETURN(auto segments, Segments::open(std::move(options), clock));
  return std::unique_ptr<EventLog>(new EventLog(std::move(segments), clock));
}

EventLog::EventLog(std::unique_ptr<Segments> segments, const Clock& clock)
    : clock_(clock), segments_(std::move(segments)), thread_([this] { work(); }) {}

EventLog::~EventLog() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_all();
}

void EventLog::emit(Event event) {
  Pending pending{std::move(event), clock_.wall(), clock_.monotonic()};
  {
    const std::lock_guard lock(mutex_);
    if (queue_.size() < kQueueEvents) {
      queue_.push_back(std::move(pending));
    } else {
      ++lost_;
    }
  }
  wake_.notify_all();
}

Status EventLog::flush() {
  std::unique_lock lock(mutex_);
  const std::uint64_t mine = ++flushes_wanted_;
  wake_.notify_all();
  flushed_.wait(lock, [&] { return flushes_done_ >= mine; });
  return flush_status_;
}

void EventLog::work() {
  const auto busy = [&] { return stopping_ || !queue_.empty() || lost_ > 0 || flushes_wanted_ > flushes_done_; };
  std::unique_lock lock(mutex_);
  for (;;) {
    if (const auto due = segments_->due(); !due) {
      wake_.wait(lock, busy);
    } else {
      wake_.wait_for(lock, *due - clock_.monotonic(), busy);
    }
    const bool stopping = stopping_;
    const std::uint64_t flushes = flushes_wanted_;
    const std::uint64_t lost = std::exchange(lost_, 0);
    std::deque<Pending> batch;
    batch.swap(queue_);
    lock.unlock();

    for (const Pending& pending : batch) segments_->write(pending);
    segments_->lose(lost, resource_exhausted("the queue was full"));
    if (const auto due = segments_->due(); stopping || (due && clock_.monotonic() >= *due)) segments_->close_segment();
    const Status status = flushes > flushes_done_ ? segments_->flush() : ok_status();

    lock.lock();
    if (flushes > flushes_done_) {
      flushes_done_ = flushes;
      flush_status_ = status;
      flushed_.notify_all();
    }
    if (stopping) return;
  }
}

}  // namespace flotilla
