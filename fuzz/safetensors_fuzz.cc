#include <cstddef>
#include <cstdint>

#include "model/safetensors.h"

namespace {

using namespace flotilla;

// What is accepted covers its data, and writing it gives a file with the same content.
void check(ByteSpan bytes) {
  const auto file = SafetensorsFile::parse(bytes);
  if (!file.ok()) return;
  std::vector<TensorToWrite> tensors;
  std::size_t covered = 0;
  for (const TensorView& tensor : file->tensors()) {
    tensors.push_back({tensor.name, tensor.dtype, tensor.shape, tensor.bytes});
    covered += tensor.bytes.size();
  }
  FLOTILLA_CHECK(covered <= bytes.size());
  const auto written = write_safetensors(tensors, file->metadata());
  FLOTILLA_CHECK(written.ok());
  const auto again = SafetensorsFile::parse(*written);
  FLOTILLA_CHECK(again.ok() && again->metadata() == file->metadata());
  for (const TensorView& tensor : file->tensors()) {
    const auto same = again->expect(tensor.name, tensor.dtype, tensor.shape);
    FLOTILLA_CHECK(same.ok() && as_text(same->bytes) == as_text(tensor.bytes));
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  check({data, size});
  // The input as a header whose length is right, before a little data.
  for (const std::size_t data_size : {0, 1, 24}) {
    ByteWriter writer;
    writer.put(static_cast<std::uint64_t>(size));
    writer.put_bytes({data, size});
    writer.put_bytes(Bytes(data_size));
    check(std::move(writer).take());
  }
  return 0;
}
