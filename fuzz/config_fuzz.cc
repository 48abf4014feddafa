#include <cstddef>
#include <cstdint>
#include <string_view>

#include "config/run_config.h"

// Whatever is accepted prints as TOML that reads back equal.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace flotilla;
  RunConfig config;
  if (!parse_config(config, as_text({data, size}), "fuzz").ok()) return 0;
  const std::string text = config_toml(config);
  RunConfig again;
  FLOTILLA_CHECK(parse_config(again, text, "again").ok());
  FLOTILLA_CHECK(config_toml(again) == text);
  return 0;
}
