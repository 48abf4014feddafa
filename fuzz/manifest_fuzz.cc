#include <cstdlib>

#include "signed_document.h"
#include "sync/manifest.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace flotilla;
  fuzz_signed_document(
      "manifest", {data, size}, fuzz_key(), [](nlohmann::json&) {},
      [](const std::string& text) {
        const auto manifest = manifest_from_json(text, fuzz_key().public_key());
        if (manifest.ok() && manifest_to_json(*manifest, fuzz_key()) != text) std::abort();
      });
  return 0;
}
