#include <cstddef>
#include <cstdint>

#include "base/bytes.h"
#include "model/description.h"

// Whatever is accepted is written as a configuration that says the same.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace flotilla;
  const auto model = ModelDescription::from_config_json(as_text({data, size}));
  if (!model.ok()) return 0;
  const auto again = ModelDescription::from_config_json(model->to_config_json());
  FLOTILLA_CHECK(again.ok());
  FLOTILLA_CHECK(again->to_config_json() == model->to_config_json());
  FLOTILLA_CHECK(again->parameters() == model->parameters());
  return 0;
}
