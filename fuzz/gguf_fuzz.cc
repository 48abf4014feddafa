#include <cstddef>
#include <cstdint>

#include "model/model_import.h"

// The file as a container, and what a model is made of as far as it goes. A file cannot ask for more memory than a
// small multiple of its size, except that a model's description names sizes: its tensors must be in the file, though.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace flotilla;
  const auto file = GgufFile::parse({data, size});
  if (!file.ok()) return 0;
  for (const GgufTensor& tensor : file->tensors()) {
    std::vector<float> values(tensor.rows * tensor.cols);
    dequantize(tensor, values.data());
  }
  if (auto spec = tokenizer_from_gguf(*file); spec.ok()) (void)Tokenizer::create(std::move(spec).value()).ok();
  if (auto description = description_from_gguf(*file); description.ok()) {
    const auto weights = weights_from_gguf(*file, std::move(description).value());
    if (weights.ok()) FLOTILLA_CHECK(weights->tensors.size() == weights->description.tensors.size());
  }
  return 0;
}
