#include "sync/delta_codec1.h"

#include <algorithm>
#include <cstring>
#include <span>

#include <fmt/format.h>

#include "sync/delta_layout.h"

namespace flotilla {
namespace {

struct Range {
  std::int64_t begin;
  std::int64_t end;
};

// The integers of one scale group. Groups in order cover a matrix in order.
Range group_range(const TensorSpec& spec, std::int64_t group) {
  const std::int64_t groups = groups_of(spec.cols);
  const std::int64_t begin = group / groups * spec.cols + group % groups * kScaleGroup;
  return {begin, begin + std::min(kScaleGroup, spec.cols - group % groups * kScaleGroup)};
}

// Steps are never zero: the code is zigzag minus one, so that -1, +1, -2, +2 are 0, 1, 2, 3.
std::int64_t step_of(std::uint64_t code) {
  const auto half = static_cast<std::int64_t>(code / 2) + 1;
  return code % 2 == 0 ? -half : half;
}

using Readers = std::vector<ByteReader>;

// Applies `count` changes to integers within [-limit, limit]; none may fall into the `whole` ranges, which rise.
template <typename Integer>
Status apply_changes(std::uint64_t count, std::span<const Range> whole, int limit, ByteReader& gaps, ByteReader& steps,
                     std::vector<Integer>& values) {
  std::int64_t position = -1;
  std::size_t next_whole = 0;
  for (std::uint64_t i = 0; i < count; ++i) {
    FLOTILLA_ASSIGN_OR_RETURN(const std::uint64_t gap, gaps.get_varint());
    const std::uint64_t left = values.size() - static_cast<std::uint64_t>(position + 1);
    if (gap >= left) return data_loss(fmt::format("change {}: a gap of {} leads past the end, {} left", i, gap, left));
    position += static_cast<std::int64_t>(gap) + 1;
    while (next_whole < whole.size() && whole[next_whole].end <= position) ++next_whole;
    if (next_whole < whole.size() && whole[next_whole].begin <= position) {
      return data_loss(fmt::format("change {}: position {} lies in a group that comes whole", i, position));
    }
    FLOTILLA_ASSIGN_OR_RETURN(const std::uint64_t code, steps.get_varint());
    if (code >= 4 * static_cast<std::uint64_t>(limit))
      return data_loss(fmt::format("change {}: step code {}", i, code));
    const std::int64_t value = values[position] + step_of(code);
    if (value < -limit || value > limit) return data_loss(fmt::format("change {}: the integer becomes {}", i, value));
    values[position] = static_cast<Integer>(value);
  }
  return ok_status();
}

Status apply_matrix(const TensorSpec& spec, Readers& in, GridTensor& tensor) {
  FLOTILLA_ASSIGN_OR_RETURN(const std::uint64_t changed, in[kCounts].get_varint());
  FLOTILLA_ASSIGN_OR_RETURN(const std::uint64_t rescaled, in[kCounts].get_varint());
  std::vector<Range> whole;
  std::int64_t group = -1;
  for (std::uint64_t i = 0; i < rescaled; ++i) {
    FLOTILLA_ASSIGN_OR_RETURN(const std::uint64_t gap, in[kGroupGaps].get_varint());
    const std::uint64_t left = tensor.scales.size() - static_cast<std::uint64_t>(group + 1);
    if (gap >= left) return data_loss(fmt::format("group {}: a gap of {} leads past the end, {} left", i, gap, left));
    group += static_cast<std::int64_t>(gap) + 1;
    FLOTILLA_ASSIGN_OR_RETURN(const auto scale, in[kGroupScales].get<std::uint16_t>());
    if (scale == tensor.scales[group]) return data_loss(fmt::format("scale group {} keeps its scale", group));
    if (!scale_in_range(bf16_to_float(scale))) {
      return data_loss(fmt::format("scale group {}: scale {} is out of range", group, bf16_to_float(scale)));
    }
    tensor.scales[group] = scale;
    whole.push_back(group_range(spec, group));
    const std::int64_t size = whole.back().end - whole.back().begin;
    FLOTILLA_ASSIGN_OR_RETURN(const ByteSpan integers, in[kGroupIntegers].get_bytes(static_cast<std::uint64_t>(size)));
    std::memcpy(tensor.q.data() + whole.back().begin, integers.data(), integers.size());
    if (std::find(integers.begin(), integers.end(), 0x80) != integers.end()) {
      return data_loss(fmt::format("scale group {}: an integer of -128", group));
    }
  }
  return apply_changes(changed, whole, kMatrixLimit, in[kGaps], in[kSteps], tensor.q);
}

Status apply_vector(const TensorSpec& spec, Readers& in, GridTensor& tensor) {
  FLOTILLA_ASSIGN_OR_RETURN(const std::uint64_t changed, in[kCounts].get_varint());
  FLOTILLA_ASSIGN_OR_RETURN(const std::uint64_t rescaled, in[kCounts].get_varint());
  if (rescaled > 1 || (rescaled == 1 && changed != 0)) {
    return data_loss(fmt::format("a vector with {} scales and {} changes", rescaled, changed));
  }
  if (rescaled == 0) {
    return apply_changes(changed, {}, kVectorLimit, in[kVectorGaps], in[kVectorSteps], tensor.vector_q);
  }
  FLOTILLA_ASSIGN_OR_RETURN(const auto scale, in[kVectorScales].get<float>());
  if (scale == tensor.vector_scale) return data_loss("the vector keeps its scale");
  if (!scale_in_range(scale)) return data_loss(fmt::format("scale {} is out of range", scale));
  tensor.vector_scale = scale;
  FLOTILLA_ASSIGN_OR_RETURN(const ByteSpan integers,
                            in[kVectorIntegers].get_bytes(2 * static_cast<std::uint64_t>(spec.size())));
  std::memcpy(tensor.vector_q.data(), integers.data(), integers.size());
  if (std::find(tensor.vector_q.begin(), tensor.vector_q.end(), INT16_MIN) != tensor.vector_q.end()) {
    return data_loss("an integer of -32768");
  }
  return ok_status();
}

}  // namespace

StreamsApplication::StreamsApplication(const DeltaStreamSpans& streams) : streams_(streams.begin(), streams.end()) {}

Status StreamsApplication::apply(const TensorSpec& spec, GridTensor& tensor) {
  const auto apply = spec.kind == TensorKind::kMatrix ? apply_matrix : apply_vector;
  return apply(spec, streams_, tensor);
}

Status StreamsApplication::finish() const {
  for (int i = 0; i < kDeltaStreams; ++i) {
    if (streams_[i].remaining() == 0) continue;
    return data_loss(fmt::format("{} bytes too many in stream {}", streams_[i].remaining(), i));
  }
  return ok_status();
}

}  // namespace flotilla
