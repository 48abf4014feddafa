#include "telemetry/event_record.h"

#include <cmath>

#include <gtest/gtest.h>

namespace flotilla {
namespace {

using namespace std::chrono_literals;

EventRecord sample() { return {1767225600123ms, 51200000000ns, "learner", 7, {"learner.checkpoint", {{"step", 5}}}}; }

constexpr std::string_view kLine =
    R"({"time_ms":1767225600123,"monotonic_ns":51200000000,"writer":"learner","sequence":7,"kind":"learner.checkpoint","fields":{"step":5}})";

std::string error_of(std::string_view line) {
  const auto record = parse_event_line(line);
  return record.ok() ? "" : record.status().to_string();
}

TEST(EventRecord, a_line_has_the_documented_form_and_reads_back) {
  EXPECT_EQ(event_line(sample()), std::string(kLine) + "\n");
  const auto record = parse_event_line(kLine);
  ASSERT_TRUE(record.ok()) << record.status().to_string();
  EXPECT_EQ(record->time, 1767225600123ms);
  EXPECT_EQ(record->monotonic, 51200000000ns);
  EXPECT_EQ(record->writer, "learner");
  EXPECT_EQ(record->sequence, 7u);
  EXPECT_EQ(record->event.kind, "learner.checkpoint");
  EXPECT_EQ(record->event.fields, (nlohmann::json{{"step", 5}}));
}

TEST(EventRecord, whatever_the_fields_hold_makes_one_valid_line) {
  EventRecord record = sample();
  record.event.fields = {{"bad", "a\xff\nb"}, {"nan", std::nan("")}, {"quote", "\""}};
  const std::string line = event_line(record);
  EXPECT_EQ(line.find('\n'), line.size() - 1);
  const auto again = parse_event_line(std::string_view(line).substr(0, line.size() - 1));
  ASSERT_TRUE(again.ok()) << again.status().to_string();
  EXPECT_EQ(again->event.fields["bad"], "a\xef\xbf\xbd\nb");
  EXPECT_TRUE(again->event.fields["nan"].is_null());
  record.event.fields = nullptr;
  EXPECT_NE(event_line(record).find("\"fields\":{}"), std::string::npos);
}

TEST(EventRecord, a_line_that_is_not_an_event_is_refused_with_the_reason) {
  EXPECT_EQ(error_of(""), "data_loss: not JSON");
  EXPECT_EQ(error_of("{"), "data_loss: not JSON");
  EXPECT_EQ(error_of("[]"), "data_loss: expected an object, got array");
  EXPECT_EQ(error_of("{}"), "data_loss: time_ms is missing");
  EXPECT_EQ(error_of(std::string(kLine) + "x"), "data_loss: not JSON");
  const auto with = [](std::string_view from, std::string_view to) {
    std::string line(kLine);
    return error_of(line.replace(line.find(from), from.size(), to));
  };
  EXPECT_EQ(with("1767225600123", "\"x\""), "data_loss: time_ms: expected an integer, got string");
  EXPECT_EQ(with("51200000000", "0.5"), "data_loss: monotonic_ns: expected an integer, got number");
  EXPECT_EQ(with("\"learner\"", "1"), "data_loss: writer: expected text, got number");
  EXPECT_EQ(with(":7", ":-7"), "data_loss: sequence: expected a count, got number");
  EXPECT_EQ(with("\"learner.checkpoint\"", "null"), "data_loss: kind: expected text, got null");
  EXPECT_EQ(with("{\"step\":5}", "[]"), "data_loss: fields: expected an object, got array");
  EXPECT_EQ(with("\"fields\"", "\"extra\":1,\"fields\""), "data_loss: expected 6 fields, got 7");
  EXPECT_EQ(with("\"sequence\":7", "\"sequence\":7,\"sequence\":8"), "data_loss: a key is there twice");
  EXPECT_EQ(with("{\"step\":5}", "{\"a\":" + std::string(100, '[') + std::string(100, ']') + "}"),
            "data_loss: nested too deeply");
}

TEST(EventSegment, reads_all_lines_and_counts_a_torn_one) {
  EventRecord record = sample();
  std::string text = event_line(record);
  ++record.sequence;
  text += event_line(record);
  const auto whole = parse_event_segment(text);
  ASSERT_TRUE(whole.ok());
  EXPECT_EQ(whole->records.size(), 2u);
  EXPECT_EQ(whole->torn_bytes, 0u);
  // Wherever a writer dies, the lines before it are there.
  for (std::size_t length = 0; length < text.size(); ++length) {
    const auto cut = parse_event_segment(std::string_view(text).substr(0, length));
    ASSERT_TRUE(cut.ok()) << length;
    const std::size_t first = kLine.size() + 1;
    EXPECT_EQ(cut->records.size(), length < first ? 0u : 1u);
    EXPECT_EQ(cut->torn_bytes, length < first ? length : length - first);
  }
}

TEST(EventSegment, a_corrupt_line_and_a_gap_are_errors) {
  const std::string line = event_line(sample());
  EXPECT_EQ(parse_event_segment(line + "nonsense\n").status().to_string(), "data_loss: line 2: not JSON");
  EXPECT_EQ(parse_event_segment(line + line).status().to_string(), "data_loss: line 2: sequence 7 follows 7");
}

}  // namespace
}  // namespace flotilla
