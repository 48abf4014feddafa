#include "sync/delta_layout.h"

#include <algorithm>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "base/bytes.h"
#include "model/grid.h"

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
      FLOTILLA_CHECK(row <= kRegionMax);  // describe_model() refuses longer ones
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

std::int64_t integers_of(const ModelDescription& description, const DeltaRegion& region) {
  const TensorSpec& spec = description.tensors[static_cast<std::size_t>(region.tensor)];
  return spec.kind == TensorKind::kMatrix ? (region.row_end - region.row_begin) * spec.cols : spec.size();
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
    const std::string& name = description.tensors[static_cast<std::size_t>(layout.regions[i].tensor)].name;
    const std::int64_t integers = integers_of(description, layout.regions[i]);
    if (std::ssize(history[i]) > integers / kHistoryShare) {
      return data_loss(fmt::format("{} past changes of {} integers of {}", history[i].size(), integers, name));
    }
    std::int64_t previous = -1;
    for (const PastChange& past : history[i]) {
      if (past.position <= previous || past.position >= integers || past.age == 0) {
        return data_loss(fmt::format("a past change at {} of {}, of age {}", +past.position, name, +past.age));
      }
      previous = past.position;
    }
  }
  return ok_status();
}

Sha256Digest history_digest(const DeltaHistory& history) {
  Sha256 digest;
  digest.update(as_bytes("flotilla delta history 1"));
  ByteWriter bytes;  // of one region: not a copy of all
  for (const ChangeHistory& region : history) {
    bytes.put(static_cast<std::uint32_t>(region.size()));
    for (const PastChange& past : region) bytes.put(past.bits());
    digest.update(std::exchange(bytes, {}).take());
  }
  return digest.finish();
}

std::int64_t history_bytes_max(const ModelDescription& description) {
  std::int64_t bytes = 0;
  for (const DeltaRegion& region : delta_layout(description).regions) {
    bytes += static_cast<std::int64_t>(sizeof(ChangeHistory));
    bytes += integers_of(description, region) / kHistoryShare * static_cast<std::int64_t>(sizeof(PastChange));
  }
  return bytes;
}

bool scale_in_range(float scale) { return scale >= kScaleMin && scale <= kScaleMax; }

}  // namespace flotilla
