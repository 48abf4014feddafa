#include "telemetry/event_record.h"

#include <fmt/format.h>

namespace flotilla {
namespace {

using nlohmann::json;

std::string text_of(const json& value) { return value.dump(-1, ' ', false, json::error_handler_t::replace); }

// A line is a few kilobytes; nesting beyond this is not ours and could exhaust the parser's stack.
constexpr int kDepthLimit = 32;

Result<json> parse_object(std::string_view line) {
  bool too_deep = false;
  bool repeated = false;
  std::vector<std::vector<std::string>> keys;
  const json::parser_callback_t callback = [&](int depth, json::parse_event_t event, json& parsed) {
    if (depth > kDepthLimit) too_deep = true;
    if (event == json::parse_event_t::object_start) keys.emplace_back();
    if (event == json::parse_event_t::object_end && !keys.empty()) keys.pop_back();
    if (event == json::parse_event_t::key && !keys.empty()) {
      const auto& name = parsed.get_ref<const std::string&>();
      for (const std::string& seen : keys.back()) repeated = repeated || seen == name;
      keys.back().push_back(name);
    }
    return !too_deep;
  };
  json object = json::parse(line, callback, false);
  if (too_deep) return data_loss("nested too deeply");
  if (object.is_discarded()) return data_loss("not JSON");
  if (repeated) return data_loss("a key is there twice");
  if (!object.is_object()) return data_loss(fmt::format("expected an object, got {}", object.type_name()));
  return object;
}

Result<const json*> member(const json& object, const char* name, bool (*has_type)(const json&), const char* expected) {
  const auto found = object.find(name);
  if (found == object.end()) return data_loss(fmt::format("{} is missing", name));
  if (!has_type(*found)) return data_loss(fmt::format("{}: expected {}, got {}", name, expected, found->type_name()));
  return &*found;
}

bool is_integer(const json& value) { return value.is_number_integer(); }
bool is_unsigned(const json& value) { return value.is_number_unsigned(); }
bool is_text(const json& value) { return value.is_string(); }
bool is_object(const json& value) { return value.is_object(); }

}  // namespace

std::string event_line(const EventRecord& record) {
  return fmt::format("{{\"time_ms\":{},\"monotonic_ns\":{},\"writer\":{},\"sequence\":{},\"kind\":{},\"fields\":{}}}\n",
                     record.time.count(), record.monotonic.count(), text_of(record.writer), record.sequence,
                     text_of(record.event.kind),
                     record.event.fields.is_object() ? text_of(record.event.fields) : std::string("{}"));
}

Result<EventRecord> parse_event_line(std::string_view line) {
  FLOTILLA_ASSIGN_OR_RETURN(const json object, parse_object(line));
  EventRecord record;
  FLOTILLA_ASSIGN_OR_RETURN(const json* time, member(object, "time_ms", is_integer, "an integer"));
  FLOTILLA_ASSIGN_OR_RETURN(const json* monotonic, member(object, "monotonic_ns", is_integer, "an integer"));
  FLOTILLA_ASSIGN_OR_RETURN(const json* writer, member(object, "writer", is_text, "text"));
  FLOTILLA_ASSIGN_OR_RETURN(const json* sequence, member(object, "sequence", is_unsigned, "a count"));
  FLOTILLA_ASSIGN_OR_RETURN(const json* kind, member(object, "kind", is_text, "text"));
  FLOTILLA_ASSIGN_OR_RETURN(const json* fields, member(object, "fields", is_object, "an object"));
  if (object.size() != 6) return data_loss(fmt::format("expected 6 fields, got {}", object.size()));
  record.time = std::chrono::milliseconds(time->get<std::int64_t>());
  record.monotonic = std::chrono::nanoseconds(monotonic->get<std::int64_t>());
  record.writer = writer->get<std::string>();
  record.sequence = sequence->get<std::uint64_t>();
  record.event = {kind->get<std::string>(), *fields};
  return record;
}

Result<EventSegment> parse_event_segment(std::string_view text) {
  EventSegment segment;
  std::size_t number = 1;
  while (!text.empty()) {
    const std::size_t end = text.find('\n');
    if (end == std::string_view::npos) {
      segment.torn_bytes = text.size();
      break;
    }
    auto record = parse_event_line(text.substr(0, end));
    if (!record.ok()) return std::move(record).status().with_context(fmt::format("line {}", number));
    if (!segment.records.empty() && record->sequence != segment.records.back().sequence + 1) {
      return data_loss(
          fmt::format("line {}: sequence {} follows {}", number, record->sequence, segment.records.back().sequence));
    }
    segment.records.push_back(std::move(*record));
    text.remove_prefix(end + 1);
    ++number;
  }
  return segment;
}

}  // namespace flotilla
