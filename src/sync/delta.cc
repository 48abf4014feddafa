#include "sync/delta.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include <fmt/format.h>

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
std::uint64_t step_code(std::int64_t step) {
  return static_cast<std::uint64_t>(step > 0 ? 2 * step - 1 : -2 * step - 2);
}
std::int64_t step_of(std::uint64_t code) {
  const auto half = static_cast<std::int64_t>(code / 2) + 1;
  return code % 2 == 0 ? -half : half;
}

using Writers = std::array<ByteWriter, kDeltaStreams>;

// Writes the changes of one tensor between positions, in rising order.
template <typename Integer>
class ChangeWriter {
 public:
  ChangeWriter(const Integer* before, const Integer* after, ByteWriter& gaps, ByteWriter& steps)
      : before_(before), after_(after), gaps_(gaps), steps_(steps) {}

  void scan(std::int64_t begin, std::int64_t end) {
    constexpr std::int64_t kWord = sizeof(std::uint64_t) / sizeof(Integer);
    std::int64_t i = begin;
    for (; i + kWord <= end; i += kWord) {
      // Nearly all words are equal: two loads and a comparison.
      if (std::memcmp(before_ + i, after_ + i, sizeof(std::uint64_t)) != 0) scan_slowly(i, i + kWord);
    }
    scan_slowly(i, end);
  }
  std::int64_t count() const { return count_; }

 private:
  void scan_slowly(std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      if (before_[i] == after_[i]) continue;
      gaps_.put_varint(static_cast<std::uint64_t>(i - previous_ - 1));
      steps_.put_varint(step_code(std::int64_t{after_[i]} - before_[i]));
      previous_ = i;
      ++count_;
    }
  }

  const Integer* before_;
  const Integer* after_;
  ByteWriter& gaps_;
  ByteWriter& steps_;
  std::int64_t previous_ = -1;
  std::int64_t count_ = 0;
};

template <typename Integer>
std::int64_t differences(const std::vector<Integer>& before, const std::vector<Integer>& after, Range range) {
  std::int64_t count = 0;
  for (std::int64_t i = range.begin; i < range.end; ++i) count += before[i] != after[i];
  return count;
}

void encode_matrix(const TensorSpec& spec, const GridTensor& before, const GridTensor& after, Writers& out,
                   EncodedDelta& report) {
  ChangeWriter changes(before.q.data(), after.q.data(), out[kGaps], out[kSteps]);
  std::int64_t scanned = 0;
  std::int64_t previous_group = -1;
  std::int64_t rescaled = 0;
  for (std::int64_t group = 0; group < static_cast<std::int64_t>(after.scales.size()); ++group) {
    if (before.scales[group] == after.scales[group]) continue;
    const Range range = group_range(spec, group);
    changes.scan(scanned, range.begin);
    scanned = range.end;
    out[kGroupGaps].put_varint(static_cast<std::uint64_t>(group - previous_group - 1));
    out[kGroupScales].put(after.scales[group]);
    out[kGroupIntegers].put_bytes(as_bytes(std::span(after.q).subspan(range.begin, range.end - range.begin)));
    report.changed += differences(before.q, after.q, range);
    previous_group = group;
    ++rescaled;
  }
  changes.scan(scanned, spec.size());
  out[kCounts].put_varint(static_cast<std::uint64_t>(changes.count()));
  out[kCounts].put_varint(static_cast<std::uint64_t>(rescaled));
  report.changed += changes.count();
  report.rescaled_groups += rescaled;
}

void encode_vector(const TensorSpec& spec, const GridTensor& before, const GridTensor& after, Writers& out,
                   EncodedDelta& report) {
  const bool rescaled = before.vector_scale != after.vector_scale;
  ChangeWriter changes(before.vector_q.data(), after.vector_q.data(), out[kVectorGaps], out[kVectorSteps]);
  if (rescaled) {
    out[kVectorScales].put(after.vector_scale);
    out[kVectorIntegers].put_bytes(as_bytes(std::span(after.vector_q)));
    report.changed += differences(before.vector_q, after.vector_q, {0, spec.size()});
    ++report.rescaled_groups;
  } else {
    changes.scan(0, spec.size());
    report.changed += changes.count();
  }
  out[kCounts].put_varint(static_cast<std::uint64_t>(changes.count()));
  out[kCounts].put_varint(rescaled ? 1 : 0);
}

using Readers = std::vector<ByteReader>;

bool scale_in_range(float scale) { return scale >= kScaleMin && scale <= kScaleMax; }

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

Result<EncodedDelta> encode_delta(const ModelDescription& description, const GridState& before,
                                  const GridState& after) {
  FLOTILLA_RETURN_IF_ERROR(check_grid(description, before).with_context("encode a delta: state before"));
  FLOTILLA_RETURN_IF_ERROR(check_grid(description, after).with_context("encode a delta: state after"));
  Writers writers;
  EncodedDelta delta;
  for (std::size_t i = 0; i < description.tensors.size(); ++i) {
    const TensorSpec& spec = description.tensors[i];
    const auto encode = spec.kind == TensorKind::kMatrix ? encode_matrix : encode_vector;
    encode(spec, before.tensors[i], after.tensors[i], writers, delta);
    delta.total += spec.size();
  }
  DeltaStreams streams;
  for (int i = 0; i < kDeltaStreams; ++i) streams[i] = std::move(writers[i]).take();
  delta.bytes = write_delta_frame(streams);
  return delta;
}

DeltaApplication::DeltaApplication(const DeltaFrame& frame) : streams_(frame.streams.begin(), frame.streams.end()) {}

Status DeltaApplication::apply(const TensorSpec& spec, GridTensor& tensor) {
  const auto apply = spec.kind == TensorKind::kMatrix ? apply_matrix : apply_vector;
  return apply(spec, streams_, tensor).with_context("delta: tensor " + spec.name);
}

Status DeltaApplication::finish() const {
  for (int i = 0; i < kDeltaStreams; ++i) {
    if (streams_[i].remaining() == 0) continue;
    return data_loss(fmt::format("delta: {} bytes too many in stream {}", streams_[i].remaining(), i));
  }
  return ok_status();
}

Result<GridState> apply_delta(const ModelDescription& description, GridState base, ByteSpan bytes) {
  FLOTILLA_RETURN_IF_ERROR(check_grid(description, base).with_context("apply a delta: base"));
  FLOTILLA_ASSIGN_OR_RETURN(const DeltaFrame frame, read_delta_frame(description, bytes).with_context("delta"));
  DeltaApplication application(frame);
  for (std::size_t i = 0; i < description.tensors.size(); ++i) {
    FLOTILLA_RETURN_IF_ERROR(application.apply(description.tensors[i], base.tensors[i]));
  }
  FLOTILLA_RETURN_IF_ERROR(application.finish());
  return base;
}

}  // namespace flotilla
