#pragma once

#include <bit>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "base/hashing.h"
#include "base/status.h"
#include "model/description.h"
#include "model/weights.h"

namespace flotilla {

// The grid: what the fleet runs and what weight sync ships. Every matrix is int8 per row in groups of kScaleGroup
// columns (the last group of a row may be shorter), value = q * scale; every vector is int16 with one scale.
// docs/formats/grid.md has the definition; docs/design/arithmetic.md the measurements behind the constants.
inline constexpr std::int64_t kScaleGroup = 64;
inline constexpr int kMatrixLimit = 127;          // q of a matrix lies in [-127, 127]
inline constexpr int kVectorLimit = 32767;        // q of a vector lies in [-32767, 32767]
inline constexpr float kScaleHeadroom = 1.0625f;  // room for values to grow before a group needs a new scale
// Scales lie between the two, so that no product of integer and scale is infinite or denormal.
inline constexpr float kScaleMin = 0x1p-100f;
inline constexpr float kScaleMax = 0x1p+100f;
// The scale of a group that holds nothing but zeros: there is nothing to choose it by.
inline constexpr float kScaleOfZeros = 0x1p-16f;

// bfloat16: the upper half of a float.
inline float bf16_to_float(std::uint16_t bits) { return std::bit_cast<float>(std::uint32_t{bits} << 16); }
std::uint16_t float_to_bf16(float value);  // to nearest, ties to even; NaN stays NaN

inline std::int64_t groups_of(std::int64_t cols) { return (cols + kScaleGroup - 1) / kScaleGroup; }

// One tensor on the grid. Exactly one of the two halves is used, by the kind in the description.
struct GridTensor {
  // Matrix: q[row * cols + col], scales[row * groups_of(cols) + group] as bf16, in [kScaleMin, kScaleMax].
  std::vector<std::int8_t> q;
  std::vector<std::uint16_t> scales;
  // Vector: value = vector_q[i] * vector_scale; the scale lies in the same range.
  std::vector<std::int16_t> vector_q;
  float vector_scale = 0;

  bool operator==(const GridTensor&) const = default;
};

// A whole version of the weights, in the order of description.tensors.
struct GridState {
  std::vector<GridTensor> tensors;
  bool operator==(const GridState&) const = default;
};

// A state that need not be in memory as a whole: shows its tensors one by one, in the order of the description, each
// while the visitor runs. On an error it has shown those before.
using TensorVisitor = std::function<void(TensorIndex index, const GridTensor& tensor)>;
using GridSource = std::function<Status(const TensorVisitor& visit)>;
GridSource source_of(const GridState& state);  // which outlives it
// Any tensor of a state that somebody holds; and another in its place, of the same shape.
using TensorReader = std::function<GridTensor(TensorIndex index)>;
using TensorWriter = std::function<void(TensorIndex index, GridTensor tensor)>;

// The grid of version 0: scales are chosen from the weights, with headroom. NaN, infinity or a value too large for
// kScaleMax: data_loss naming the tensor.
Result<GridState> make_grid(const ModelWeights& weights);

struct RegridReport {
  std::int64_t changed = 0;          // integers that differ from the state before
  std::int64_t total = 0;            // integers in all
  std::int64_t rescaled_groups = 0;  // groups and vectors that got a new scale because a value left the range
  std::int64_t rescaled_bytes = 0;   // their scales and integers, which travel whole
};

// The grid of `masters` with the sticky scales of `before`: q = round_half_even(master / scale). A group (or vector)
// whose value leaves the range gets a new scale, and only that group does. tensors[i] points to
// description.tensors[i].size() floats. NaN, infinity or a value too large for kScaleMax: data_loss naming the tensor.
// `report` may be null.
Result<GridState> regrid(const ModelDescription& description, const GridState& before,
                         const std::vector<const float*>& masters, RegridReport* report, int threads = 1);

// value = q * scale, each product rounded once to fp32.
void dequantize(const TensorSpec& spec, const GridTensor& tensor, float* out);
ModelWeights dequantize(const ModelDescription& description, const GridState& state);

// Shapes, ranges and scales are what the description asks for; data_loss names the tensor otherwise.
Status check_grid(const ModelDescription& description, const GridState& state);
Status check_grid(const TensorSpec& spec, const GridTensor& tensor);

// SHA-256 over name, shape, integers and scales of one tensor; and the Merkle root over the tensors of a state
// (docs/formats/grid.md): two states are the same weights if and only if the roots are equal.
Sha256Digest tensor_digest(const TensorSpec& spec, const GridTensor& tensor);
Sha256Digest merkle_root(std::span<const Sha256Digest> leaves);
Sha256Digest state_digest(const ModelDescription& description, const GridState& state, int threads = 1);

}  // namespace flotilla
