#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/bytes.h"
#include "telemetry/event_record.h"

// Whatever is accepted is written as a line that is accepted again.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace flotilla;
  const auto segment = parse_event_segment(as_text({data, size}));
  if (!segment.ok()) return 0;
  for (const EventRecord& record : segment->records) {
    const std::string line = event_line(record);
    FLOTILLA_CHECK(parse_event_line(std::string_view(line).substr(0, line.size() - 1)).ok());
  }
  return 0;
}
