#include <algorithm>
#include <cstdlib>

#include "model/safetensors.h"
#include "rollout/group_file.h"

namespace {

using namespace flotilla;

void parse(ByteSpan bytes) {
  const auto group = parse_group(bytes);
  // What parses has one encoding.
  if (group.ok() && !std::ranges::equal(write_group(*group), bytes)) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const ByteSpan bytes(data, size);
  parse(bytes);
  // The digest would keep everything behind it from being tried: give the same content one that fits.
  const auto file = SafetensorsFile::parse(bytes);
  if (!file.ok() || !file->metadata().contains("group")) return 0;
  SafetensorsMetadata metadata = file->metadata();
  Sha256 hash;
  hash.update(as_bytes(metadata["group"]));
  std::vector<TensorToWrite> tensors;
  for (const TensorView& tensor : file->tensors()) {
    hash.update(tensor.bytes);
    tensors.push_back({tensor.name, tensor.dtype, tensor.shape, tensor.bytes});
  }
  metadata["sha256"] = hash.finish().to_hex();
  if (const auto fitting = write_safetensors(tensors, metadata); fitting.ok()) parse(*fitting);
  return 0;
}
