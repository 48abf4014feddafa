#include <cstddef>
#include <cstdint>

#include "base/bytes.h"
#include "env/dictionary_entry.h"

// Whatever is accepted is exactly what the writer writes.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace flotilla;
  const auto dictionary = read_dictionary({data, size});
  if (dictionary.ok()) FLOTILLA_CHECK(write_dictionary(*dictionary) == Bytes(data, data + size));
  return 0;
}
