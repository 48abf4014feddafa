#include "sync/delta.h"

#include <vector>

#include <fmt/format.h>

#include "sync/region_coder.h"

namespace flotilla {

Result<EncodedDelta> encode_delta(const ModelDescription& description, const GridState& before,
                                  const DeltaHistory& history, const GridState& after, int threads) {
  FLOTILLA_RETURN_IF_ERROR(check_grid(description, before).with_context("encode a delta: state before"));
  FLOTILLA_RETURN_IF_ERROR(check_grid(description, after).with_context("encode a delta: state after"));
  const DeltaLayout layout = delta_layout(description);
  FLOTILLA_CHECK(history.size() == layout.regions.size());
  EncodedDelta delta{.bytes = {}, .history = history};
  for (const TensorSpec& spec : description.tensors) delta.total += spec.size();

  std::vector<Bytes> parts(layout.parts.size());
  std::vector<RegionReport> reports(layout.regions.size());
  ThreadPool pool(threads);
  pool.run(std::ssize(parts), [&](std::int64_t index, int) {
    const DeltaLayout::Part& part = layout.parts[static_cast<std::size_t>(index)];
    PartModel model;
    RangeEncoder out;
    for (std::size_t i = part.begin; i < part.end; ++i) {
      const auto tensor = static_cast<std::size_t>(layout.regions[i].tensor);
      reports[i] = encode_region(description.tensors[tensor], layout.regions[i], before.tensors[tensor],
                                 after.tensors[tensor], delta.history[i], model, out);
    }
    parts[static_cast<std::size_t>(index)] = std::move(out).finish();
  });
  for (const RegionReport& report : reports) {
    delta.changed += report.changed;
    delta.rescaled_groups += report.rescaled_groups;
  }
  delta.bytes = write_delta_frame(parts);
  return delta;
}

DeltaApplication::DeltaApplication(const ModelDescription& description, const DeltaLayout& layout,
                                   const DeltaFrame& frame)
    : description_(description), layout_(layout), frame_(frame) {
  if (frame.codec == 1) streams_.emplace(frame.streams);
}

Status DeltaApplication::apply(const DeltaLayout::Batch& batch, std::span<GridTensor> tensors, DeltaHistory& history,
                               ThreadPool& pool, DeltaScratch& scratch) {
  if (streams_) {
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      const TensorSpec& spec = description_.tensors[batch.tensor_begin + i];
      FLOTILLA_RETURN_IF_ERROR(streams_->apply(spec, tensors[i]).with_context("delta: tensor " + spec.name));
    }
    for (std::size_t part = batch.part_begin; part < batch.part_end; ++part) {
      for (std::size_t i = layout_.parts[part].begin; i < layout_.parts[part].end; ++i) history[i].clear();
    }
    return ok_status();
  }
  std::vector<Status> applied(batch.part_end - batch.part_begin);
  scratch.resize(static_cast<std::size_t>(pool.threads()));
  pool.run(std::ssize(applied), [&](std::int64_t i, int thread) {
    const auto part = static_cast<std::size_t>(i);
    applied[part] = apply_part(batch.part_begin + part, batch.tensor_begin, tensors, history,
                               scratch[static_cast<std::size_t>(thread)]);
  });
  for (const Status& status : applied) FLOTILLA_RETURN_IF_ERROR(status);
  return ok_status();
}

Status DeltaApplication::apply_part(std::size_t part, std::size_t first_tensor, std::span<GridTensor> tensors,
                                    DeltaHistory& history, std::vector<Change>& changes) {
  PartModel model;
  RangeDecoder in(frame_.parts[part]);
  for (std::size_t i = layout_.parts[part].begin; i < layout_.parts[part].end; ++i) {
    const DeltaRegion& region = layout_.regions[i];
    const auto tensor = static_cast<std::size_t>(region.tensor);
    const TensorSpec& spec = description_.tensors[tensor];
    FLOTILLA_RETURN_IF_ERROR(decode_region(spec, region, tensors[tensor - first_tensor], history[i], model, in, changes)
                                 .with_context("delta: tensor " + spec.name));
  }
  if (!in.at_end()) return data_loss(fmt::format("delta: bytes too many in part {}", part));
  return ok_status();
}

Status DeltaApplication::finish() const { return streams_ ? streams_->finish().with_context("delta") : ok_status(); }

}  // namespace flotilla
