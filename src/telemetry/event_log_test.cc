#include "telemetry/event_log.h"

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <fstream>

#include <gtest/gtest.h>

#include "base/files.h"
#include "telemetry/event_folder.h"
#include "telemetry/event_reader.h"

namespace flotilla {
namespace {

using namespace std::chrono_literals;

// Keeps what was delivered; can be told to refuse.
class Hub {
 public:
  DeliverSegment deliver() {
    return [this](std::uint64_t number, ByteSpan bytes) {
      const std::lock_guard lock(mutex_);
      ++attempts_;
      changed_.notify_all();
      if (refuse_) return unavailable("the hub is away");
      if (number < segments_.size()) return already_exists("segment");
      segments_.resize(number + 1);
      segments_[number] = std::string(as_text(bytes));
      return ok_status();
    };
  }
  void refuse(bool refuse) {
    const std::lock_guard lock(mutex_);
    refuse_ = refuse;
  }
  bool wait_for_attempts(int count) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, 30s, [&] { return attempts_ >= count; });
  }
  std::vector<std::string> segments() {
    const std::lock_guard lock(mutex_);
    return segments_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::string> segments_;
  int attempts_ = 0;
  bool refuse_ = false;
};

class EventLogTest : public testing::Test {
 protected:
  std::unique_ptr<EventLog> open(EventLogOptions options = {}) {
    options.folder = folder_;
    options.writer = "learner";
    auto log = EventLog::open(std::move(options), clock_);
    EXPECT_TRUE(log.ok()) << log.status().to_string();
    return log.ok() ? std::move(*log) : nullptr;
  }
  std::vector<EventRecord> read() {
    EventReader reader(folder_);
    auto records = reader.poll();
    EXPECT_TRUE(records.ok()) << records.status().to_string();
    return records.ok() ? std::move(*records) : std::vector<EventRecord>{};
  }
  std::vector<SegmentInfo> segments() { return list_segments(folder_).value(); }

  TemporaryFolder temporary_;
  std::filesystem::path folder_ = temporary_.path() / "events";
  ManualClock clock_;
};

TEST_F(EventLogTest, events_are_on_disk_after_a_flush) {
  clock_.advance(5s);
  const auto log = open();
  log->emit({"x.y", {{"n", 1}}});
  log->emit({"x.z", {{"n", 2}}});
  ASSERT_TRUE(log->flush().ok());
  const auto records = read();
  ASSERT_EQ(records.size(), 2u);
  EXPECT_EQ(records[0].event.kind, "x.y");
  EXPECT_EQ(records[0].writer, "learner");
  EXPECT_EQ(records[0].monotonic, 5s);
  EXPECT_EQ(records[1].sequence, 1u);
}

TEST_F(EventLogTest, the_next_life_goes_on_with_the_next_segment_and_sequence) {
  open()->emit({"x.y", {}});
  {
    const auto log = open();
    log->emit({"x.y", {}});
  }
  const auto records = read();
  ASSERT_EQ(records.size(), 2u);
  EXPECT_EQ(records[1].sequence, 1u);
  EXPECT_EQ(segments().size(), 2u);
}

TEST_F(EventLogTest, segments_are_bounded_in_size) {
  {
    const auto log = open({.segment_bytes = 500});
    for (int i = 0; i < 20; ++i) log->emit({"x.y", {{"n", i}}});
    log->emit({"x.y", {{"long", std::string(2000, 'a')}}});
    log->emit({"x.y", {}});
  }
  const auto records = read();
  ASSERT_EQ(records.size(), 22u);
  EXPECT_GT(segments().size(), 4u);
  for (const SegmentInfo& segment : segments())
    EXPECT_TRUE(segment.bytes <= 500 || segment.bytes > 2000) << segment.bytes;
}

TEST_F(EventLogTest, a_segment_is_closed_at_its_age) {
  const auto log = open({.segment_age = 60s});
  log->emit({"x.y", {}});
  ASSERT_TRUE(log->flush().ok());
  clock_.advance(60s);
  log->emit({"x.y", {}});
  ASSERT_TRUE(log->flush().ok());
  log->emit({"x.y", {}});
  ASSERT_TRUE(log->flush().ok());
  EXPECT_EQ(segments().size(), 2u);
  EXPECT_EQ(read().size(), 3u);
}

TEST_F(EventLogTest, one_process_at_a_time_has_the_folder) {
  const auto log = open();
  const auto second = EventLog::open({.folder = folder_, .writer = "learner"});
  EXPECT_EQ(second.status().code(), StatusCode::kFailedPrecondition);
}

TEST_F(EventLogTest, a_folder_that_cannot_be_made_is_an_error) {
  ASSERT_TRUE(write_file_atomically(folder_, "a file").ok());
  EXPECT_FALSE(EventLog::open({.folder = folder_, .writer = "learner"}).ok());
}

TEST_F(EventLogTest, many_threads_may_emit) {
  const auto log = open({.segment_bytes = 4096});
  {
    std::vector<std::jthread> threads;
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([&, t] {
        for (int i = 0; i < 200; ++i) log->emit({"x.y", {{"thread", t}, {"n", i}}});
      });
    }
  }
  ASSERT_TRUE(log->flush().ok());
  const auto records = read();
  ASSERT_EQ(records.size(), 800u);
  std::vector<int> next(4, 0);
  for (const EventRecord& record : records) {
    EXPECT_EQ(record.event.fields["n"], next[record.event.fields["thread"].get<std::size_t>()]++);
  }
}

TEST_F(EventLogTest, after_a_kill_at_most_the_last_line_is_torn_and_flushed_events_are_there) {
  int flushed[2];
  ASSERT_EQ(::pipe(flushed), 0);
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    auto log = EventLog::open({.folder = folder_, .writer = "learner", .segment_bytes = 10000});
    if (!log.ok()) ::_exit(1);
    for (int i = 0;; ++i) {
      (*log)->emit({"x.y", {{"n", i}}});
      if (i % 100 != 99) continue;
      if (!(*log)->flush().ok() || ::write(flushed[1], "f", 1) != 1) ::_exit(1);
    }
  }
  ::close(flushed[1]);
  char byte;
  for (int i = 0; i < 5; ++i) ASSERT_EQ(::read(flushed[0], &byte, 1), 1);
  ASSERT_EQ(::kill(child, SIGKILL), 0);
  ASSERT_EQ(::waitpid(child, nullptr, 0), child);
  ::close(flushed[0]);

  const std::size_t before = read().size();
  EXPECT_GE(before, 500u);
  open()->emit({"x.again", {}});
  const auto records = read();
  ASSERT_EQ(records.size(), before + 1);
  EXPECT_EQ(records.back().sequence, before);
}

TEST_F(EventLogTest, a_torn_or_corrupt_end_does_not_keep_the_next_life_from_starting) {
  open()->emit({"x.y", {}});
  std::ofstream(segment_path(folder_, 0), std::ios::app) << "\n\nnonsense\n{\"time_ms\":12";
  open()->emit({"x.y", {}});
  const auto text = read_text_file(segment_path(folder_, 1));
  ASSERT_TRUE(text.ok());
  const auto segment = parse_event_segment(*text);
  ASSERT_TRUE(segment.ok());
  EXPECT_EQ(segment->records.at(0).sequence, 1u);
}

TEST_F(EventLogTest, a_full_disk_costs_events_and_a_later_event_says_so) {
  // The limit on a file's size stands for a full disk: a write is cut short, the next one fails.
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    std::signal(SIGXFSZ, SIG_IGN);
    auto log = EventLog::open({.folder = folder_, .writer = "learner"});
    if (!log.ok()) ::_exit(1);
    (*log)->emit({"x.y", {{"n", 0}}});
    if (!(*log)->flush().ok()) ::_exit(2);
    const rlimit full{150, RLIM_INFINITY};
    if (::setrlimit(RLIMIT_FSIZE, &full) != 0) ::_exit(3);
    for (int i = 1; i <= 3; ++i) (*log)->emit({"x.y", {{"n", i}}});
    const Status status = (*log)->flush();
    if (status.ok() || status.message().find("3 events are lost: write ") != 0) ::_exit(4);
    const rlimit free{RLIM_INFINITY, RLIM_INFINITY};
    if (::setrlimit(RLIMIT_FSIZE, &free) != 0) ::_exit(5);
    (*log)->emit({"x.y", {{"n", 4}}});
    ::_exit((*log)->flush().ok() ? 0 : 6);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_EQ(status, 0) << WEXITSTATUS(status);
  const auto records = read();
  ASSERT_EQ(records.size(), 3u);
  EXPECT_EQ(records[1].event.kind, "log.lost");
  EXPECT_EQ(records[1].event.fields["events"], 3);
  EXPECT_EQ(records[2].event.fields["n"], 4);
}

TEST_F(EventLogTest, closed_segments_are_delivered_in_order) {
  Hub hub;
  {
    const auto log = open({.segment_bytes = 200, .deliver = hub.deliver()});
    for (int i = 0; i < 6; ++i) log->emit({"x.y", {{"n", i}}});
  }
  std::string all;
  for (const std::string& segment : hub.segments()) all += segment;
  const auto delivered = parse_event_segment(all);
  ASSERT_TRUE(delivered.ok()) << delivered.status().to_string();
  EXPECT_EQ(delivered->records.size(), 6u);
}

TEST_F(EventLogTest, what_the_hub_refused_is_delivered_by_the_next_life) {
  Hub hub;
  hub.refuse(true);
  {
    const auto log = open({.segment_bytes = 150, .deliver = hub.deliver()});
    for (int i = 0; i < 3; ++i) log->emit({"x.y", {{"n", i}}});
    EXPECT_TRUE(hub.wait_for_attempts(1));
  }
  EXPECT_TRUE(hub.segments().empty());
  hub.refuse(false);
  open({.deliver = hub.deliver()});
  EXPECT_EQ(hub.segments().size(), 3u);
  // Without its mark the log delivers again, and the hub's answer ends that.
  std::filesystem::remove(folder_ / "delivered");
  open({.deliver = hub.deliver()});
  EXPECT_EQ(read_text_file(folder_ / "delivered").value(), "3\n");
}

TEST_F(EventLogTest, a_failed_delivery_is_tried_again) {
  Hub hub;
  hub.refuse(true);
  const auto log = open({.segment_bytes = 1, .deliver = hub.deliver()});
  log->emit({"x.y", {}});
  log->emit({"x.y", {}});
  ASSERT_TRUE(hub.wait_for_attempts(1));
  hub.refuse(false);
  EXPECT_TRUE(hub.wait_for_attempts(2));
}

TEST_F(EventLogTest, the_oldest_segments_go_when_the_folder_is_full) {
  {
    const auto log = open({.segment_bytes = 200, .folder_bytes = 1000});
    for (int i = 0; i < 100; ++i) log->emit({"x.y", {{"n", i}}});
  }
  std::uint64_t bytes = 0;
  for (const SegmentInfo& segment : segments()) bytes += segment.bytes;
  EXPECT_LE(bytes, 1000u);
  EventReader reader(folder_);
  const auto records = reader.poll();
  ASSERT_TRUE(records.ok());
  EXPECT_EQ(records->back().event.fields["n"], 99);
  EXPECT_EQ(records->size() + reader.missing(), 100u);
}

TEST_F(EventLogTest, undelivered_segments_stay_and_new_events_are_lost_instead) {
  Hub hub;
  hub.refuse(true);
  const auto log = open({.segment_bytes = 150, .folder_bytes = 450, .deliver = hub.deliver()});
  for (int i = 0; i < 10; ++i) log->emit({"x.y", {{"n", i}}});
  const Status status = log->flush();
  EXPECT_EQ(status.code(), StatusCode::kResourceExhausted);
  EXPECT_NE(status.message().find("are not delivered; the limit is 450"), std::string::npos) << status.message();
  EXPECT_EQ(read().at(0).event.fields["n"], 0);
}

TEST_F(EventLogTest, a_reader_follows_the_writer) {
  EventReader reader(folder_);
  EXPECT_TRUE(reader.poll().value().empty());
  const auto log = open({.segment_bytes = 300});
  int seen = 0;
  for (int i = 0; i < 10; ++i) {
    log->emit({"x.y", {{"n", i}}});
    ASSERT_TRUE(log->flush().ok());
    const std::vector<EventRecord> records = reader.poll().value();
    for (const EventRecord& record : records) EXPECT_EQ(record.event.fields["n"], seen++);
    EXPECT_EQ(seen, i + 1);
  }
}

class EventReaderTest : public EventLogTest {
 protected:
  void append(std::uint64_t segment, std::string_view text) {
    std::filesystem::create_directories(folder_);
    std::ofstream(segment_path(folder_, segment), std::ios::app) << text;
  }
  static std::string line(std::uint64_t sequence) { return event_line({0ms, 0ns, "w", sequence, {"x.y", {}}}); }
};

TEST_F(EventReaderTest, a_line_is_returned_once_it_is_whole) {
  EventReader reader(folder_);
  append(0, line(0) + line(1).substr(0, 20));
  EXPECT_EQ(reader.poll().value().size(), 1u);
  EXPECT_EQ(reader.unfinished_bytes(), 20u);
  append(0, line(1).substr(20));
  EXPECT_EQ(reader.poll().value().size(), 1u);
  EXPECT_EQ(reader.unfinished_bytes(), 0u);
  EXPECT_EQ(reader.torn_lines(), 0u);
}

TEST_F(EventReaderTest, a_torn_line_is_passed_over_when_the_next_segment_begins) {
  EventReader reader(folder_);
  append(0, line(0) + "{\"ti");
  append(1, line(1));
  EXPECT_EQ(reader.poll().value().size(), 2u);
  EXPECT_EQ(reader.torn_lines(), 1u);
}

TEST_F(EventReaderTest, a_corrupt_line_is_an_error_that_names_its_place) {
  EventReader reader(folder_);
  append(0, line(0));
  append(1, "nonsense\n");
  EXPECT_EQ(reader.poll().value().size(), 1u);
  const Status status = reader.poll().status();
  EXPECT_EQ(status.code(), StatusCode::kDataLoss);
  EXPECT_EQ(status.message(), segment_path(folder_, 1).string() + ", from byte 0: line 1: not JSON");
}

TEST_F(EventReaderTest, a_sequence_that_goes_back_or_jumps_within_a_segment_is_an_error) {
  append(0, line(5));
  append(1, line(5));
  EventReader back(folder_);
  EXPECT_EQ(back.poll().value().size(), 1u);
  EXPECT_EQ(back.missing(), 5u);
  EXPECT_NE(back.poll().status().message().find("sequence 5 where 6 is next"), std::string::npos);

  EventReader jump(folder_ / "other");
  std::filesystem::create_directories(folder_ / "other");
  std::ofstream(segment_path(folder_ / "other", 0)) << line(0);
  EXPECT_EQ(jump.poll().value().size(), 1u);
  std::ofstream(segment_path(folder_ / "other", 0), std::ios::app) << line(2);
  EXPECT_NE(jump.poll().status().message().find("sequence 2 where 1 is next"), std::string::npos);
}

TEST_F(EventReaderTest, a_segment_that_shrinks_is_an_error) {
  append(0, line(0) + line(1));
  EventReader reader(folder_);
  EXPECT_EQ(reader.poll().value().size(), 2u);
  std::filesystem::resize_file(segment_path(folder_, 0), 10);
  EXPECT_NE(reader.poll().status().message().find("has shrunk to 10 bytes"), std::string::npos);
}

TEST_F(EventReaderTest, other_files_are_ignored) {
  append(0, line(0));
  std::ofstream(folder_ / "lock");
  std::ofstream(folder_ / "1.jsonl") << "x\n";
  std::ofstream(folder_ / "0000000001.json") << "x\n";
  EXPECT_EQ(segments().size(), 1u);
  EXPECT_EQ(read().size(), 1u);
}

}  // namespace
}  // namespace flotilla
