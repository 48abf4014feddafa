#pragma once

#include <vector>

#include "base/bytes.h"
#include "base/status.h"
#include "model/grid.h"
#include "sync/delta_frame.h"

namespace flotilla {

// Applies the streams of codec 1, which is read and no longer written, tensor by tensor in the order of the
// description. Strict: a change out of range, one that changes nothing, or anything left at the end is data_loss, and
// the tensor is then undefined. The streams outlive it.
class StreamsApplication {
 public:
  explicit StreamsApplication(const DeltaStreamSpans& streams);
  Status apply(const TensorSpec& spec, GridTensor& tensor);
  Status finish() const;

 private:
  std::vector<ByteReader> streams_;
};

}  // namespace flotilla
