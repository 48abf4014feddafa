#include <cstddef>
#include <cstdint>

#include "base/bytes.h"
#include "rollout/machine_use.h"

// Files of the system, whatever they hold, are understood or not; what is understood does not change by a line that
// follows.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace flotilla;
  const std::string text(as_text({data, size}));
  if (const auto ticks = ordinary_ticks(text)) FLOTILLA_CHECK(ordinary_ticks(text + "\ncpu0 x") == ticks);
  if (const auto total = pressure_total(text)) FLOTILLA_CHECK(pressure_total(text + "\nsome total=1") == total);
  if (const auto number = number_behind(text, "MemTotal:")) {
    FLOTILLA_CHECK(number_behind(text + "\nMemTotal: 1 kB", "MemTotal:") == number);
  }
  parse_process_stat(text);
  return 0;
}
