#include "sync/delta_layout.h"

#include <algorithm>

#include <fmt/format.h>

#include "base/bytes.h"

namespace flotilla {
namespace {

constexpr std::int64_t kPartIntegers = 4 << 20;  // a region has at most so many, but for one row that has more

}  // namespace

DeltaLayout delta_layout(const ModelDescription& description) {
  const std::vector<TensorSpec>& specs = description.tensors;
  DeltaLayout layout;
  for (std::size_t begin = 0, end = 0; begin < specs.size(); begin = end) {
    std::int64_t integers = 0;
    do {
      integers += specs[end++].size();
    } while (end < specs.size() && integers + specs[end].size() <= kBatchIntegers);

    DeltaLayout::Batch batch{begin, end, layout.parts.size(), 0};
    std::int64_t in_part = kPartIntegers;  // the batch begins a part
    for (std::size_t tensor = begin; tensor < end; ++tensor) {
      const TensorSpec& spec = specs[tensor];
      const std::int64_t rows = spec.kind == TensorKind::kMatrix ? spec.rows : 1;
      const std::int64_t row = spec.size() / rows;
      const std::int64_t together = std::max<std::int64_t>(1, kPartIntegers / row);
      for (std::int64_t first = 0; first < rows; first += together) {
        const std::int64_t last = std::min(rows, first + together);
        if (in_part + (last - first) * row > kPartIntegers) {
          layout.parts.push_back({layout.regions.size(), 0});
          in_part = 0;
        }
        in_part += (last - first) * row;
        layout.regions.push_back({static_cast<TensorIndex>(tensor), first, last});
        layout.parts.back().end = layout.regions.size();
      }
    }
    batch.part_end = layout.parts.size();
    layout.batches.push_back(batch);
  }
  return layout;
}

DeltaHistory no_history(const ModelDescription& description) {
  return DeltaHistory(delta_layout(description).regions.size());
}

Status check_history(const ModelDescription& description, const DeltaHistory& history) {
  const DeltaLayout layout = delta_layout(description);
  if (history.size() != layout.regions.size()) {
    return data_loss(fmt::format("a history of {} regions; expected {}", history.size(), layout.regions.size()));
  }
  for (std::size_t i = 0; i < history.size(); ++i) {
    const DeltaRegion& region = layout.regions[i];
    const TensorSpec& spec = description.tensors[static_cast<std::size_t>(region.tensor)];
    const std::int64_t rows = spec.kind == TensorKind::kMatrix ? spec.rows : 1;
    std::int64_t previous = -1;
    for (const PastChange& past : history[i]) {
      const std::int64_t position = past.position;
      if (position <= previous || position >= (region.row_end - region.row_begin) * (spec.size() / rows) ||
          past.age == 0) {
        return data_loss(fmt::format("a past change at {} of {}, of age {}", position, spec.name, +past.age));
      }
      previous = position;
    }
  }
  return ok_status();
}

Sha256Digest history_digest(const DeltaHistory& history) {
  ByteWriter bytes;
  bytes.put_bytes(as_bytes("flotilla delta history 1"));
  for (const ChangeHistory& region : history) {
    bytes.put(static_cast<std::uint32_t>(region.size()));
    for (const PastChange& past : region) bytes.put(past.bits());
  }
  return sha256(std::move(bytes).take());
}

}  // namespace flotilla
