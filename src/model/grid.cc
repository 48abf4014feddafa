#include "model/grid.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include <fmt/format.h>

#include "base/thread_pool.h"

namespace flotilla {
namespace {

// Adding it to |x| < 2^22 leaves round_half_even(x) in the low bits of the sum: exact, and a plain vector addition.
constexpr float kRounder = 0x1.8p23f;
constexpr std::uint32_t kRounderBits = std::bit_cast<std::uint32_t>(kRounder);

// q[i] = round_half_even(values[i] / scale). False when a quotient leaves [-limit, limit] or is not a number; q is then
// meaningless. Called with a constant count wherever it matters, so that the compiler unrolls it.
template <typename Integer>
inline bool quantize(const float* values, std::int64_t count, float scale, float limit, Integer* q) {
  const float edge = limit + 0.5f;
  std::uint32_t outside = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    const float quotient = values[i] / scale;
    outside |= !(std::fabs(quotient) < edge);
    q[i] = static_cast<Integer>(std::bit_cast<std::uint32_t>(quotient + kRounder) - kRounderBits);
  }
  return outside == 0;
}

// The largest absolute value as its bit pattern, which orders as the values do, with infinity and NaN at the top.
inline std::uint32_t largest_bits(const float* values, std::int64_t count) {
  std::int32_t largest = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    largest = std::max(largest, std::bit_cast<std::int32_t>(values[i]) & 0x7fffffff);
  }
  return static_cast<std::uint32_t>(largest);
}

template <typename Integer>
std::int64_t differences(const Integer* a, const Integer* b, std::int64_t count) {
  std::int64_t sum = 0;
  constexpr std::int64_t kChunk = 4096;
  for (std::int64_t begin = 0; begin < count; begin += kChunk) {
    const std::int64_t end = std::min(begin + kChunk, count);
    std::int32_t partial = 0;  // narrow, so that the inner loop becomes vector code
    for (std::int64_t i = begin; i < end; ++i) partial += a[i] != b[i];
    sum += partial;
  }
  return sum;
}

// The smallest float that is not below the value.
float round_up(double value) {
  const auto rounded = static_cast<float>(value);
  return rounded < value ? std::nextafter(rounded, std::numeric_limits<float>::infinity()) : rounded;
}

// The smallest bf16 that is not below the value. value > 0.
std::uint16_t round_up_bf16(float value) {
  return static_cast<std::uint16_t>((std::bit_cast<std::uint32_t>(value) + 0xffff) >> 16);
}

// The scale that gives the values room to grow by kScaleHeadroom. data_loss when there is none.
Result<float> choose_scale(const float* values, std::int64_t count, int limit) {
  const std::uint32_t bits = largest_bits(values, count);
  const float largest = std::bit_cast<float>(bits);
  if (!std::isfinite(largest)) return data_loss(std::isnan(largest) ? "a value is NaN" : "a value is infinite");
  if (bits == 0) return kScaleOfZeros;
  const float scale = round_up(double{largest} * kScaleHeadroom / limit);
  if (scale > kScaleMax) return data_loss(fmt::format("a value of {} is too large", largest));
  return std::max(scale, kScaleMin);
}

Result<std::uint16_t> choose_group_scale(const float* values, std::int64_t count) {
  FLOTILLA_ASSIGN_OR_RETURN(const float scale, choose_scale(values, count, kMatrixLimit));
  return round_up_bf16(scale);
}

bool quantize_group(const float* values, std::int64_t count, std::uint16_t scale, std::int8_t* q) {
  const float factor = bf16_to_float(scale);
  if (count == kScaleGroup) return quantize(values, kScaleGroup, factor, kMatrixLimit, q);
  return quantize(values, count, factor, kMatrixLimit, q);
}

// Calls f(group, offset, count) for every scale group of a matrix, in order, until one returns an error.
template <typename F>
Status for_each_group(const TensorSpec& spec, F f) {
  std::int64_t group = 0;
  for (std::int64_t row = 0; row < spec.rows; ++row) {
    for (std::int64_t col = 0; col < spec.cols; col += kScaleGroup, ++group) {
      const std::int64_t count = std::min(kScaleGroup, spec.cols - col);
      FLOTILLA_RETURN_IF_ERROR(f(group, row * spec.cols + col, count));
    }
  }
  return ok_status();
}

Status grid_matrix(const TensorSpec& spec, const float* values, GridTensor& out) {
  out.q.resize(spec.size());
  out.scales.resize(spec.rows * groups_of(spec.cols));
  return for_each_group(spec, [&](std::int64_t group, std::int64_t offset, std::int64_t count) -> Status {
    FLOTILLA_ASSIGN_OR_RETURN(out.scales[group], choose_group_scale(values + offset, count));
    FLOTILLA_CHECK(quantize_group(values + offset, count, out.scales[group], &out.q[offset]));
    return ok_status();
  });
}

Status grid_vector(const TensorSpec& spec, const float* values, GridTensor& out) {
  out.vector_q.resize(spec.size());
  FLOTILLA_ASSIGN_OR_RETURN(out.vector_scale, choose_scale(values, spec.size(), kVectorLimit));
  FLOTILLA_CHECK(quantize(values, spec.size(), out.vector_scale, kVectorLimit, out.vector_q.data()));
  return ok_status();
}

Status grid_tensor(const TensorSpec& spec, const float* values, GridTensor& out) {
  return spec.kind == TensorKind::kMatrix ? grid_matrix(spec, values, out) : grid_vector(spec, values, out);
}

Status regrid_matrix(const TensorSpec& spec, const GridTensor& before, const float* values, GridTensor& out,
                     RegridReport& report) {
  out.q.resize(spec.size());
  out.scales = before.scales;
  FLOTILLA_RETURN_IF_ERROR(
      for_each_group(spec, [&](std::int64_t group, std::int64_t offset, std::int64_t count) -> Status {
        if (quantize_group(values + offset, count, out.scales[group], &out.q[offset])) return ok_status();
        FLOTILLA_ASSIGN_OR_RETURN(out.scales[group], choose_group_scale(values + offset, count));
        FLOTILLA_CHECK(quantize_group(values + offset, count, out.scales[group], &out.q[offset]));
        ++report.rescaled_groups;
        report.rescaled_bytes += static_cast<std::int64_t>(sizeof(out.scales[group])) + count;
        return ok_status();
      }));
  report.changed += differences(out.q.data(), before.q.data(), spec.size());
  return ok_status();
}

Status regrid_vector(const TensorSpec& spec, const GridTensor& before, const float* values, GridTensor& out,
                     RegridReport& report) {
  out.vector_q.resize(spec.size());
  out.vector_scale = before.vector_scale;
  if (!quantize(values, spec.size(), out.vector_scale, kVectorLimit, out.vector_q.data())) {
    FLOTILLA_RETURN_IF_ERROR(grid_vector(spec, values, out));
    ++report.rescaled_groups;
    report.rescaled_bytes += static_cast<std::int64_t>(sizeof(out.vector_scale) + 2 * out.vector_q.size());
  }
  report.changed += differences(out.vector_q.data(), before.vector_q.data(), spec.size());
  return ok_status();
}

bool scale_in_range(float scale) { return scale >= kScaleMin && scale <= kScaleMax; }

Status check_shape(const TensorSpec& spec, const GridTensor& tensor) {
  const bool matrix = spec.kind == TensorKind::kMatrix;
  const auto expect = [&](std::string_view what, std::size_t size, std::int64_t expected) -> Status {
    if (size == static_cast<std::size_t>(expected)) return ok_status();
    return data_loss(fmt::format("tensor {}: {} {}, expected {}", spec.name, size, what, expected));
  };
  FLOTILLA_RETURN_IF_ERROR(expect("integers of 8 bits", tensor.q.size(), matrix ? spec.size() : 0));
  FLOTILLA_RETURN_IF_ERROR(expect("scales", tensor.scales.size(), matrix ? spec.rows * groups_of(spec.cols) : 0));
  return expect("integers of 16 bits", tensor.vector_q.size(), matrix ? 0 : spec.size());
}

Status check_shapes(const ModelDescription& description, const GridState& state) {
  if (state.tensors.size() != description.tensors.size()) {
    return data_loss(
        fmt::format("the state has {} tensors, expected {}", state.tensors.size(), description.tensors.size()));
  }
  for (std::size_t i = 0; i < state.tensors.size(); ++i) {
    FLOTILLA_RETURN_IF_ERROR(check_shape(description.tensors[i], state.tensors[i]));
  }
  return ok_status();
}

Status check_values(const TensorSpec& spec, const GridTensor& tensor) {
  if (spec.kind == TensorKind::kVector) {
    if (!scale_in_range(tensor.vector_scale))
      return data_loss(fmt::format("scale {} is out of range", tensor.vector_scale));
    if (std::count(tensor.vector_q.begin(), tensor.vector_q.end(), INT16_MIN) != 0) {
      return data_loss(fmt::format("an integer is below {}", -kVectorLimit));
    }
    return ok_status();
  }
  for (const std::uint16_t scale : tensor.scales) {
    if (!scale_in_range(bf16_to_float(scale))) {
      return data_loss(fmt::format("scale {} is out of range", bf16_to_float(scale)));
    }
  }
  if (std::count(tensor.q.begin(), tensor.q.end(), INT8_MIN) != 0) {
    return data_loss(fmt::format("an integer is below {}", -kMatrixLimit));
  }
  return ok_status();
}

}  // namespace

std::uint16_t float_to_bf16(float value) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  if (std::isnan(value))
    return static_cast<std::uint16_t>((bits >> 16) | 0x40);  // the payload may lie in the lower half
  return static_cast<std::uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

GridSource source_of(const GridState& state) {
  return [&state](const TensorVisitor& visit) {
    for (std::size_t i = 0; i < state.tensors.size(); ++i) visit(static_cast<TensorIndex>(i), state.tensors[i]);
    return ok_status();
  };
}

Result<GridState> make_grid(const ModelWeights& weights) {
  const std::vector<TensorSpec>& specs = weights.description.tensors;
  if (weights.tensors.size() != specs.size()) {
    return invalid_argument(fmt::format("{} tensors of weights, expected {}", weights.tensors.size(), specs.size()));
  }
  GridState state;
  state.tensors.resize(specs.size());
  for (std::size_t i = 0; i < specs.size(); ++i) {
    if (weights.tensors[i].size() != static_cast<std::size_t>(specs[i].size())) {
      return invalid_argument(
          fmt::format("tensor {}: {} weights, expected {}", specs[i].name, weights.tensors[i].size(), specs[i].size()));
    }
    FLOTILLA_RETURN_IF_ERROR(
        grid_tensor(specs[i], weights.tensors[i].data(), state.tensors[i]).with_context("tensor " + specs[i].name));
  }
  return state;
}

Result<GridState> regrid(const ModelDescription& description, const GridState& before,
                         const std::vector<const float*>& masters, RegridReport* report, int threads) {
  FLOTILLA_RETURN_IF_ERROR(check_shapes(description, before));
  if (masters.size() != description.tensors.size()) {
    return invalid_argument(
        fmt::format("{} tensors of masters, expected {}", masters.size(), description.tensors.size()));
  }
  GridState state;
  state.tensors.resize(masters.size());
  std::vector<RegridReport> reports(masters.size());
  std::vector<Status> statuses(masters.size());
  ThreadPool pool(threads);
  pool.run(std::ssize(masters), [&](std::int64_t piece, int) {
    const auto i = static_cast<std::size_t>(piece);
    const TensorSpec& spec = description.tensors[i];
    const auto regrid_one = spec.kind == TensorKind::kMatrix ? regrid_matrix : regrid_vector;
    statuses[i] = regrid_one(spec, before.tensors[i], masters[i], state.tensors[i], reports[i]);
  });
  RegridReport counts;
  for (std::size_t i = 0; i < masters.size(); ++i) {
    FLOTILLA_RETURN_IF_ERROR(statuses[i].with_context("tensor " + description.tensors[i].name));
    counts.changed += reports[i].changed;
    counts.total += description.tensors[i].size();
    counts.rescaled_groups += reports[i].rescaled_groups;
    counts.rescaled_bytes += reports[i].rescaled_bytes;
  }
  if (report != nullptr) *report = counts;
  return state;
}

void dequantize(const TensorSpec& spec, const GridTensor& tensor, float* out) {
  if (spec.kind == TensorKind::kVector) {
    for (std::int64_t i = 0; i < spec.size(); ++i)
      out[i] = static_cast<float>(tensor.vector_q[i]) * tensor.vector_scale;
    return;
  }
  const Status never_fails = for_each_group(spec, [&](std::int64_t group, std::int64_t offset, std::int64_t count) {
    const float scale = bf16_to_float(tensor.scales[group]);
    for (std::int64_t i = offset; i < offset + count; ++i) out[i] = static_cast<float>(tensor.q[i]) * scale;
    return ok_status();
  });
  FLOTILLA_CHECK(never_fails.ok());
}

ModelWeights dequantize(const ModelDescription& description, const GridState& state) {
  ModelWeights weights{description, {}};
  weights.tensors.resize(description.tensors.size());
  for (std::size_t i = 0; i < weights.tensors.size(); ++i) {
    weights.tensors[i].resize(description.tensors[i].size());
    dequantize(description.tensors[i], state.tensors[i], weights.tensors[i].data());
  }
  return weights;
}

Status check_grid(const ModelDescription& description, const GridState& state) {
  FLOTILLA_RETURN_IF_ERROR(check_shapes(description, state));
  for (std::size_t i = 0; i < state.tensors.size(); ++i) {
    FLOTILLA_RETURN_IF_ERROR(check_grid(description.tensors[i], state.tensors[i]));
  }
  return ok_status();
}

Status check_grid(const TensorSpec& spec, const GridTensor& tensor) {
  FLOTILLA_RETURN_IF_ERROR(check_shape(spec, tensor));
  return check_values(spec, tensor).with_context("tensor " + spec.name);
}

}  // namespace flotilla
