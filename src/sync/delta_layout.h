#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/hashing.h"
#include "base/status.h"
#include "model/description.h"
#include "sync/change_history.h"

namespace flotilla {

// A batch has at most so many integers, or one tensor that has more.
inline constexpr std::int64_t kBatchIntegers = 8 << 20;

// Rows of one tensor that are coded together; a vector is one row.
struct DeltaRegion {
  TensorIndex tensor = 0;
  std::int64_t row_begin = 0;
  std::int64_t row_end = 0;
};

// How codec 2 divides a model. Everything follows from the sizes of its tensors: part of the format.
struct DeltaLayout {
  // Regions [begin, end): a stream of its own.
  struct Part {
    std::size_t begin = 0;
    std::size_t end = 0;
  };
  // Tensors, and the parts that hold all of them: what is made at a time.
  struct Batch {
    std::size_t tensor_begin = 0, tensor_end = 0;
    std::size_t part_begin = 0, part_end = 0;
  };
  std::vector<DeltaRegion> regions;
  std::vector<Part> parts;
  std::vector<Batch> batches;
};
DeltaLayout delta_layout(const ModelDescription& description);
std::int64_t integers_of(const ModelDescription& description, const DeltaRegion& region);

// What the codec remembers, region by region: part of a version, since the next delta is read with it.
using DeltaHistory = std::vector<ChangeHistory>;
// Of a state whose past nobody knows.
DeltaHistory no_history(const ModelDescription& description);
// data_loss unless it is one of this model, as advance() leaves it: positions that rise within their region, ages in
// range, no more entries than may be.
Status check_history(const ModelDescription& description, const DeltaHistory& history);
// SHA-256 over all entries in order (docs/formats/delta.md).
Sha256Digest history_digest(const DeltaHistory& history);
// The most bytes that one takes.
std::int64_t history_bytes_max(const ModelDescription& description);

bool scale_in_range(float scale);  // as the grid's are

}  // namespace flotilla
