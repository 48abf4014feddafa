#include <cstdlib>

#include "signed_document.h"
#include "sync/run_spec.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace flotilla;
  const auto own_key = [](nlohmann::json& body) { body["learner_key"] = hex(fuzz_key().public_key()); };
  fuzz_signed_document("run", {data, size}, fuzz_key(), own_key, [](const std::string& text) {
    const auto spec = run_spec_from_json(text);
    // Floats lose digits, so that the text may differ; what is read from it may not.
    if (spec.ok() && spec->learner_key == fuzz_key().public_key() &&
        run_spec_from_json(run_spec_to_json(*spec, fuzz_key())).value() != *spec) {
      std::abort();
    }
  });
  return 0;
}
