#include "sync/region_coder.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <span>
#include <vector>

#include <fmt/format.h>

namespace flotilla {
namespace {

constexpr std::uint16_t kOneScale = 0x3f80;  // bf16: of the groups of a vector, which share one

struct Range {
  std::uint32_t begin;
  std::uint32_t end;
};

// The integers of a scale group of a region. Groups in order cover it in order.
Range group_range(std::int64_t cols, std::int64_t group) {
  const std::int64_t groups = groups_of(cols);
  const std::int64_t begin = group / groups * cols + group % groups * kScaleGroup;
  return {static_cast<std::uint32_t>(begin),
          static_cast<std::uint32_t>(begin + std::min(kScaleGroup, cols - group % groups * kScaleGroup))};
}

// A region's part of a matrix.
template <typename Tensor>
auto integers_of(const TensorSpec& spec, const DeltaRegion& region, Tensor& tensor) {
  return std::span(tensor.q).subspan(static_cast<std::size_t>(region.row_begin * spec.cols),
                                     static_cast<std::size_t>((region.row_end - region.row_begin) * spec.cols));
}
template <typename Tensor>
auto scales_of(const TensorSpec& spec, const DeltaRegion& region, Tensor& tensor) {
  const std::int64_t groups = groups_of(spec.cols);
  return std::span(tensor.scales)
      .subspan(static_cast<std::size_t>(region.row_begin * groups),
               static_cast<std::size_t>((region.row_end - region.row_begin) * groups));
}

template <typename Integer>
void find_changes(std::span<const Integer> before, std::span<const Integer> after, Range range,
                  std::vector<Change>& changes) {
  constexpr std::uint32_t kWord = sizeof(std::uint64_t) / sizeof(Integer);
  const auto look = [&](std::uint32_t begin, std::uint32_t end) {
    for (std::uint32_t i = begin; i < end; ++i) {
      if (before[i] != after[i]) changes.push_back({i, std::int32_t{after[i]} - before[i]});
    }
  };
  std::uint32_t i = range.begin;
  for (; i + kWord <= range.end; i += kWord) {
    // Nearly all words are equal: two loads and a comparison.
    if (std::memcmp(&before[i], &after[i], sizeof(std::uint64_t)) != 0) look(i, i + kWord);
  }
  look(i, range.end);
}

template <typename Integer>
std::int64_t differences(std::span<const Integer> before, std::span<const Integer> after, Range range) {
  std::int64_t count = 0;
  for (std::uint32_t i = range.begin; i < range.end; ++i) count += before[i] != after[i];
  return count;
}

// What is known of integers whose unit was another one.
void forget(ChangeHistory& history, std::span<const Range> whole) {
  if (whole.empty()) return;
  auto next = whole.begin();
  std::erase_if(history, [&](const PastChange& past) {
    while (next != whole.end() && next->end <= past.position) ++next;
    return next != whole.end() && next->begin <= past.position;
  });
}

// None may fall into the `whole` ranges, which rise.
template <typename Integer>
Status apply_changes(std::span<const Change> changes, std::span<const Range> whole, int limit,
                     std::span<Integer> values) {
  auto next = whole.begin();
  for (const Change& change : changes) {
    while (next != whole.end() && next->end <= change.position) ++next;
    if (next != whole.end() && next->begin <= change.position) {
      return data_loss(fmt::format("a change at {}, in a group that comes whole", change.position));
    }
    const std::int32_t value = values[change.position] + change.step;
    if (value < -limit || value > limit) {
      return data_loss(fmt::format("the integer at {} becomes {}", change.position, value));
    }
    values[change.position] = static_cast<Integer>(value);
  }
  return ok_status();
}

ChangeRegion matrix_region(const TensorSpec& spec, std::span<const std::int8_t> q,
                           std::span<const std::uint16_t> scales) {
  return {.integers = static_cast<std::uint32_t>(q.size()), .cols = spec.cols, .scales = scales};
}
ChangeRegion vector_region(const TensorSpec& spec, std::span<const std::uint16_t> scales) {
  return {.integers = static_cast<std::uint32_t>(spec.size()), .cols = spec.size(), .scales = scales};
}
std::vector<std::uint16_t> equal_scales(const TensorSpec& spec) {
  return std::vector<std::uint16_t>(static_cast<std::size_t>(groups_of(spec.size())), kOneScale);
}

RegionReport encode_matrix(const TensorSpec& spec, const DeltaRegion& region, const GridTensor& before,
                           const GridTensor& after, ChangeHistory& history, PartModel& model, RangeEncoder& out) {
  const auto q = integers_of(spec, region, before), new_q = integers_of(spec, region, after);
  const auto scales = scales_of(spec, region, before), new_scales = scales_of(spec, region, after);
  RegionReport report;
  std::vector<Range> whole;
  std::vector<Change> changes;
  std::uint32_t looked_at = 0;
  const bool rescaled = !std::ranges::equal(scales, new_scales);
  model.region_rescaled.put(rescaled, out);
  for (std::size_t group = 0; rescaled && group < scales.size(); ++group) {
    const bool different = scales[group] != new_scales[group];
    model.group_rescaled.put(different, out);
    if (!different) continue;
    const Range range = group_range(spec.cols, static_cast<std::int64_t>(group));
    out.put_raw(new_scales[group], 16);
    for (std::uint32_t i = range.begin; i < range.end; ++i) {
      out.put_raw(static_cast<std::uint32_t>(new_q[i] + kMatrixLimit), 8);
    }
    report.changed += differences(q, new_q, range);
    ++report.rescaled_groups;
    find_changes(q, new_q, {looked_at, range.begin}, changes);
    looked_at = range.end;
    whole.push_back(range);
  }
  find_changes(q, new_q, {looked_at, static_cast<std::uint32_t>(q.size())}, changes);
  report.changed += std::ssize(changes);
  forget(history, whole);
  encode_changes(matrix_region(spec, new_q, new_scales), history, changes, model.matrices, out);
  history = advance(history, changes, std::ssize(q));
  return report;
}

RegionReport encode_vector(const TensorSpec& spec, const GridTensor& before, const GridTensor& after,
                           ChangeHistory& history, PartModel& model, RangeEncoder& out) {
  const std::span<const std::int16_t> q = before.vector_q, new_q = after.vector_q;
  const Range all{0, static_cast<std::uint32_t>(q.size())};
  const bool rescaled = before.vector_scale != after.vector_scale;
  model.region_rescaled.put(rescaled, out);
  if (rescaled) {
    const auto bits = std::bit_cast<std::uint32_t>(after.vector_scale);
    out.put_raw(bits >> 16, 16);
    out.put_raw(bits & 0xffff, 16);
    for (const std::int16_t value : new_q) out.put_raw(static_cast<std::uint32_t>(value + kVectorLimit), 16);
    history.clear();
    return {.changed = differences(q, new_q, all), .rescaled_groups = 1};
  }
  std::vector<Change> changes;
  find_changes(q, new_q, all, changes);
  const auto scales = equal_scales(spec);
  encode_changes(vector_region(spec, scales), history, changes, model.vectors, out);
  history = advance(history, changes, std::ssize(q));
  return {.changed = std::ssize(changes), .rescaled_groups = 0};
}

Status decode_matrix(const TensorSpec& spec, const DeltaRegion& region, GridTensor& tensor, ChangeHistory& history,
                     PartModel& model, RangeDecoder& in, std::vector<Change>& changes) {
  const auto q = integers_of(spec, region, tensor);
  const auto scales = scales_of(spec, region, tensor);
  std::vector<Range> whole;
  const bool rescaled = model.region_rescaled.get(in);
  for (std::size_t group = 0; rescaled && group < scales.size(); ++group) {
    if (!model.group_rescaled.get(in)) continue;
    const Range range = group_range(spec.cols, static_cast<std::int64_t>(group));
    const auto scale = static_cast<std::uint16_t>(in.raw(16));
    if (scale == scales[group]) return data_loss(fmt::format("scale group {} keeps its scale", group));
    if (!scale_in_range(bf16_to_float(scale))) {
      return data_loss(fmt::format("scale group {}: scale {} is out of range", group, bf16_to_float(scale)));
    }
    scales[group] = scale;
    for (std::uint32_t i = range.begin; i < range.end; ++i) {
      const auto value = static_cast<int>(in.raw(8)) - kMatrixLimit;
      if (value > kMatrixLimit) return data_loss(fmt::format("scale group {}: an integer of {}", group, value));
      q[i] = static_cast<std::int8_t>(value);
    }
    whole.push_back(range);
  }
  if (rescaled && whole.empty()) return data_loss("new scales are announced, and none comes");
  forget(history, whole);
  FLOTILLA_RETURN_IF_ERROR(decode_changes(matrix_region(spec, q, scales), history, model.matrices, in, changes));
  history = advance(history, changes, std::ssize(q));
  return apply_changes<std::int8_t>(changes, whole, kMatrixLimit, q);
}

Status decode_vector(const TensorSpec& spec, GridTensor& tensor, ChangeHistory& history, PartModel& model,
                     RangeDecoder& in, std::vector<Change>& changes) {
  if (model.region_rescaled.get(in)) {
    const std::uint32_t high = in.raw(16);
    const auto scale = std::bit_cast<float>(high << 16 | in.raw(16));
    if (scale == tensor.vector_scale) return data_loss("the vector keeps its scale");
    if (!scale_in_range(scale)) return data_loss(fmt::format("scale {} is out of range", scale));
    tensor.vector_scale = scale;
    for (std::int16_t& value : tensor.vector_q) {
      const auto wide = static_cast<int>(in.raw(16)) - kVectorLimit;
      if (wide > kVectorLimit) return data_loss(fmt::format("an integer of {}", wide));
      value = static_cast<std::int16_t>(wide);
    }
    history.clear();
    return ok_status();
  }
  const auto scales = equal_scales(spec);
  FLOTILLA_RETURN_IF_ERROR(decode_changes(vector_region(spec, scales), history, model.vectors, in, changes));
  history = advance(history, changes, spec.size());
  return apply_changes<std::int16_t>(changes, {}, kVectorLimit, tensor.vector_q);
}

}  // namespace

RegionReport encode_region(const TensorSpec& spec, const DeltaRegion& region, const GridTensor& before,
                           const GridTensor& after, ChangeHistory& history, PartModel& model, RangeEncoder& out) {
  return spec.kind == TensorKind::kMatrix ? encode_matrix(spec, region, before, after, history, model, out)
                                          : encode_vector(spec, before, after, history, model, out);
}

Status decode_region(const TensorSpec& spec, const DeltaRegion& region, GridTensor& tensor, ChangeHistory& history,
                     PartModel& model, RangeDecoder& in, std::vector<Change>& changes) {
  changes.clear();
  return spec.kind == TensorKind::kMatrix ? decode_matrix(spec, region, tensor, history, model, in, changes)
                                          : decode_vector(spec, tensor, history, model, in, changes);
}

}  // namespace flotilla
