#include <algorithm>
#include <bit>

#include "base/thread_pool.h"
#include "model/grid.h"

namespace flotilla {
namespace {

constexpr std::string_view kTensorTag = "flotilla grid tensor 1";
constexpr std::uint8_t kLeaf = 0;  // RFC 6962, section 2.1: a leaf can never be taken for a node
constexpr std::uint8_t kNode = 1;

Sha256Digest hash_subtree(std::span<const Sha256Digest> leaves) {
  Sha256 hash;
  if (leaves.size() == 1) {
    hash.update_value(kLeaf);
    hash.update(leaves[0].bytes);
    return hash.finish();
  }
  const std::size_t left = std::bit_floor(leaves.size() - 1);  // the largest power of two below the number of leaves
  hash.update_value(kNode);
  hash.update(hash_subtree(leaves.first(left)).bytes);
  hash.update(hash_subtree(leaves.subspan(left)).bytes);
  return hash.finish();
}

}  // namespace

Sha256Digest tensor_digest(const TensorSpec& spec, const GridTensor& tensor) {
  Sha256 hash;
  hash.update_framed(kTensorTag);
  hash.update_framed(spec.name);
  hash.update_value(static_cast<std::uint8_t>(spec.kind == TensorKind::kMatrix ? 0 : 1));
  hash.update_value(static_cast<std::uint64_t>(spec.rows));
  hash.update_value(static_cast<std::uint64_t>(spec.cols));
  if (spec.kind == TensorKind::kMatrix) {
    hash.update(as_bytes(std::span<const std::int8_t>(tensor.q)));
    hash.update(as_bytes(std::span<const std::uint16_t>(tensor.scales)));
  } else {
    hash.update(as_bytes(std::span<const std::int16_t>(tensor.vector_q)));
    hash.update_value(tensor.vector_scale);
  }
  return hash.finish();
}

Sha256Digest merkle_root(std::span<const Sha256Digest> leaves) {
  return leaves.empty() ? sha256(ByteSpan{}) : hash_subtree(leaves);
}

Sha256Digest state_digest(const ModelDescription& description, const GridState& state, int threads) {
  FLOTILLA_CHECK(state.tensors.size() == description.tensors.size());
  std::vector<Sha256Digest> leaves(state.tensors.size());
  ThreadPool pool(threads);
  pool.run(std::ssize(leaves), [&](std::int64_t tensor, int) {
    const auto i = static_cast<std::size_t>(tensor);
    leaves[i] = tensor_digest(description.tensors[i], state.tensors[i]);
  });
  return merkle_root(leaves);
}

}  // namespace flotilla
