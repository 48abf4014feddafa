#include "sync/version_parts.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "sync/delta.h"

namespace flotilla {
namespace {

constexpr std::int64_t kWaitingShare = 16;

std::int64_t tensor_bytes(const TensorSpec& spec) {
  return spec.kind == TensorKind::kMatrix ? spec.size() + 2 * spec.rows * groups_of(spec.cols) : 2 * spec.size();
}

std::int64_t whole_bytes(const ModelDescription& description) {
  std::int64_t bytes = 0;
  for (const TensorSpec& spec : description.tensors) bytes += tensor_bytes(spec);
  return bytes;
}

}  // namespace

Result<DeltaHistory> make_tensors(const ModelDescription& description, const VersionParts& parts, ThreadPool& pool,
                                  const std::function<Status(TensorIndex first, std::span<GridTensor> tensors)>& use,
                                  std::size_t& part) {
  const DeltaLayout layout = delta_layout(description);
  DeltaHistory history = parts.history;
  std::vector<DeltaApplication> deltas;
  for (const DeltaFrame& frame : parts.deltas) deltas.emplace_back(description, layout, frame);
  for (const DeltaLayout::Batch& batch : layout.batches) {
    std::vector<GridTensor> tensors(batch.tensor_end - batch.tensor_begin);
    part = 0;
    pool.run(std::ssize(tensors), [&](std::int64_t i, int) {
      tensors[static_cast<std::size_t>(i)] = parts.base(static_cast<TensorIndex>(batch.tensor_begin) + i);
    });
    for (std::size_t delta = 0; delta < deltas.size(); ++delta) {
      part = parts.applied + delta + 1;
      FLOTILLA_RETURN_IF_ERROR(deltas[delta].apply(batch, tensors, history, pool));
    }
    part = 0;
    FLOTILLA_RETURN_IF_ERROR(use(static_cast<TensorIndex>(batch.tensor_begin), tensors));
  }
  for (std::size_t delta = 0; delta < deltas.size(); ++delta) {
    part = parts.applied + delta + 1;
    FLOTILLA_RETURN_IF_ERROR(deltas[delta].finish());
  }
  return history;
}

Status add_delta(const ModelDescription& description, DeltaFrame delta, ThreadPool& pool, VersionParts& parts,
                 std::size_t& part) {
  parts.deltas.push_back(std::move(delta));
  std::int64_t waiting = 0;
  for (const DeltaFrame& frame : parts.deltas) waiting += std::ssize(frame.raw);
  if (waiting <= whole_bytes(description) / kWaitingShare) return ok_status();
  TensorReader base = parts.base;
  if (!parts.replace) {
    const auto copy = std::make_shared<GridState>();
    copy->tensors.resize(description.tensors.size());
    base = [copy](TensorIndex i) { return copy->tensors[static_cast<std::size_t>(i)]; };
    parts.replace = [copy](TensorIndex i, GridTensor tensor) {
      copy->tensors[static_cast<std::size_t>(i)] = std::move(tensor);
    };
  }
  FLOTILLA_ASSIGN_OR_RETURN(parts.history, make_tensors(
                                               description, parts, pool,
                                               [&](TensorIndex first, std::span<GridTensor> tensors) {
                                                 for (GridTensor& tensor : tensors) {
                                                   parts.replace(first++, std::move(tensor));
                                                 }
                                                 return ok_status();
                                               },
                                               part));
  parts.base = std::move(base);
  parts.applied += parts.deltas.size();
  parts.deltas.clear();
  return ok_status();
}

std::int64_t version_bytes_max(const ModelDescription& description) {
  std::int64_t at_a_time = kBatchIntegers;
  for (const TensorSpec& spec : description.tensors) at_a_time = std::max(at_a_time, tensor_bytes(spec));
  const std::int64_t whole = whole_bytes(description);
  return whole + 2 * (whole / kWaitingShare) + at_a_time;
}

}  // namespace flotilla
