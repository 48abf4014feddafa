#include "telemetry/event_schema.h"

#include <cstdlib>
#include <set>

#include <gtest/gtest.h>

#include "base/files.h"

namespace flotilla {
namespace {

TEST(EventSchema, names_are_unique_and_have_a_part) {
  std::set<std::string_view> kinds;
  for (const EventKind& kind : event_kinds()) {
    EXPECT_TRUE(kinds.insert(kind.name).second) << kind.name;
    EXPECT_NE(kind.name.find('.'), std::string_view::npos) << kind.name;
    std::set<std::string_view> fields;
    for (const EventField& field : kind.fields)
      EXPECT_TRUE(fields.insert(field.name).second) << kind.name << field.name;
  }
}

TEST(EventSchema, an_event_is_checked_against_its_kind) {
  const auto error = [](Event event) { return check_event(event).message(); };
  EXPECT_EQ(error({"learner.checkpoint", {{"step", 5}, {"bytes", 10}, {"seconds", 1}}}), "");
  EXPECT_EQ(error({"learner.checkpoint", {{"step", 5}, {"bytes", 10}, {"seconds", nullptr}}}), "");
  EXPECT_EQ(error({"learner.dropped_group", {{"group", "a"}, {"reason", "stale"}}}), "");
  EXPECT_EQ(error({"learner.nap", {}}), "event kind learner.nap is not in the table");
  EXPECT_EQ(error({"worker.wait", 3}), "worker.wait: fields are not an object");
  EXPECT_EQ(error({"learner.checkpoint", {{"step", 5}, {"bytes", 10}}}),
            "learner.checkpoint: field seconds is missing");
  EXPECT_EQ(error({"learner.checkpoint", {{"step", 5.5}, {"bytes", 10}, {"seconds", 1}}}),
            "learner.checkpoint: field step: expected integer, got number");
  EXPECT_EQ(error({"worker.wait", {{"reason", 3}}}), "worker.wait: field reason: expected text, got number");
  EXPECT_EQ(error({"worker.wait", {{"reason", "x"}, {"why", 3}}}), "worker.wait: field why is not in the table");
}

// FLOTILLA_WRITE_DOCS=1 build/release/bin/telemetry_test writes the page again.
TEST(EventSchema, the_page_is_what_the_table_says) {
  const std::filesystem::path page = "docs/formats/events.md";
  if (std::getenv("FLOTILLA_WRITE_DOCS") != nullptr) {
    ASSERT_TRUE(write_file_atomically(page, events_page()).ok());
  }
  const auto text = read_text_file(page);
  ASSERT_TRUE(text.ok()) << text.status().to_string();
  EXPECT_EQ(*text, events_page()) << "run with FLOTILLA_WRITE_DOCS=1 to write it again";
}

}  // namespace
}  // namespace flotilla
