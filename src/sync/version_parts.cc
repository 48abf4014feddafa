#include "sync/version_parts.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "sync/delta.h"

namespace flotilla {
namespace {

constexpr std::int64_t kWaitingShare = 16;
constexpr std::int64_t kWaitingLeast = 256 << 10;  // nothing is saved below

std::int64_t tensor_bytes(const TensorSpec& spec) {
  return spec.kind == TensorKind::kMatrix ? spec.size() + 2 * spec.rows * groups_of(spec.cols) : 2 * spec.size();
}

std::int64_t whole_bytes(const ModelDescription& description) {
  std::int64_t bytes = 0;
  for (const TensorSpec& spec : description.tensors) bytes += tensor_bytes(spec);
  return bytes;
}

}  // namespace

Status make_tensors(const ModelDescription& description, const VersionParts& parts, ThreadPool& pool,
                    const std::function<Status(TensorIndex first, std::span<GridTensor> tensors)>& use,
                    std::size_t& part, DeltaHistory* history) {
  const DeltaLayout layout = delta_layout(description);
  DeltaHistory made(layout.regions.size());
  std::vector<DeltaApplication> deltas;
  for (const DeltaFrame& frame : parts.deltas) deltas.emplace_back(description, layout, frame);
  for (const DeltaLayout::Batch& batch : layout.batches) {
    std::vector<GridTensor> tensors(batch.tensor_end - batch.tensor_begin);
    part = 0;
    pool.run(std::ssize(tensors), [&](std::int64_t i, int) {
      tensors[static_cast<std::size_t>(i)] = parts.base(static_cast<TensorIndex>(batch.tensor_begin) + i);
    });
    const std::size_t begin = layout.parts[batch.part_begin].begin, end = layout.parts[batch.part_end - 1].end;
    for (std::size_t region = begin; region < end; ++region) made[region] = (*parts.history)[region];
    {
      DeltaScratch scratch;  // gone before the tensors are used
      for (std::size_t delta = 0; delta < deltas.size(); ++delta) {
        part = parts.applied + delta + 1;
        FLOTILLA_RETURN_IF_ERROR(deltas[delta].apply(batch, tensors, made, pool, scratch));
        for (std::size_t region = begin; parts.deltas[delta].forgets && region < end; ++region) made[region].clear();
      }
    }
    part = 0;
    FLOTILLA_RETURN_IF_ERROR(use(static_cast<TensorIndex>(batch.tensor_begin), tensors));
    // Nobody asks for it: one batch's is enough.
    for (std::size_t region = begin; history == nullptr && region < end; ++region) made[region] = {};
  }
  for (std::size_t delta = 0; delta < deltas.size(); ++delta) {
    part = parts.applied + delta + 1;
    FLOTILLA_RETURN_IF_ERROR(deltas[delta].finish());
  }
  if (history != nullptr) *history = std::move(made);
  return ok_status();
}

Status add_delta(const ModelDescription& description, DeltaFrame delta, ThreadPool& pool, VersionParts& parts,
                 std::size_t& part) {
  parts.deltas.push_back(std::move(delta));
  std::int64_t waiting = 0;
  for (const DeltaFrame& frame : parts.deltas) waiting += std::ssize(frame.bytes);
  if (waiting <= waiting_bytes_max(description)) return ok_status();
  TensorReader base = parts.base;
  if (!parts.replace) {
    const auto copy = std::make_shared<GridState>();
    copy->tensors.resize(description.tensors.size());
    base = [copy](TensorIndex i) { return copy->tensors[static_cast<std::size_t>(i)]; };
    parts.replace = [copy](TensorIndex i, GridTensor tensor) {
      copy->tensors[static_cast<std::size_t>(i)] = std::move(tensor);
    };
  }
  const auto history = std::make_shared<DeltaHistory>();
  FLOTILLA_RETURN_IF_ERROR(make_tensors(
      description, parts, pool,
      [&](TensorIndex first, std::span<GridTensor> tensors) {
        for (GridTensor& tensor : tensors) parts.replace(first++, std::move(tensor));
        return ok_status();
      },
      part, history.get()));
  parts.base = std::move(base);
  parts.history = history;
  parts.applied += parts.deltas.size();
  parts.deltas.clear();
  return ok_status();
}

std::int64_t waiting_bytes_max(const ModelDescription& description) {
  return std::max(kWaitingLeast, whole_bytes(description) / kWaitingShare);
}

std::int64_t version_bytes_max(const ModelDescription& description, int threads) {
  const DeltaLayout layout = delta_layout(description);
  std::int64_t batch_bytes = 0, region_integers = 0;
  for (const DeltaLayout::Batch& batch : layout.batches) {
    std::int64_t bytes = 0;
    for (std::size_t i = batch.tensor_begin; i < batch.tensor_end; ++i) bytes += tensor_bytes(description.tensors[i]);
    batch_bytes = std::max(batch_bytes, bytes);
  }
  for (const DeltaRegion& region : layout.regions) {
    region_integers = std::max(region_integers, integers_of(description, region));
  }
  // One integer in twelve changes, eight bytes a change, in vectors that double.
  const std::int64_t changes_bytes = threads * region_integers * 3 / 2;
  return whole_bytes(description) + 2 * waiting_bytes_max(description) + batch_bytes + changes_bytes +
         4 * history_bytes_max(description);
}

std::int64_t object_bytes_max(const ModelDescription& description) {
  // A delta of changes as they would cost most has about three bytes an integer; an anchor one, history and header.
  constexpr std::int64_t kHeader = 16 << 20;
  return 4 * whole_bytes(description) + history_bytes_max(description) + kHeader;
}

}  // namespace flotilla
