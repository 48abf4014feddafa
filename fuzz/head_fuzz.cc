#include <cstdlib>

#include "signed_document.h"
#include "sync/head.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace flotilla;
  fuzz_signed_document(
      "head", {data, size}, fuzz_key(), [](nlohmann::json&) {},
      [](const std::string& text) {
        const auto head = head_from_json(text, fuzz_key().public_key());
        if (head.ok() && head_to_json(*head, fuzz_key()) != text) std::abort();
      });
  return 0;
}
