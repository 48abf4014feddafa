#include "sync/version_parts.h"

#include "sync/delta.h"

namespace flotilla {

Status make_tensors(const ModelDescription& description, const VersionParts& parts, ThreadPool& pool,
                    const std::function<Status(TensorIndex first, std::span<GridTensor> tensors)>& use,
                    std::size_t& part) {
  const std::vector<TensorSpec>& specs = description.tensors;
  std::vector<DeltaApplication> deltas(parts.deltas.begin(), parts.deltas.end());
  for (std::size_t begin = 0, end = 0; begin < specs.size(); begin = end) {
    std::int64_t bytes = 0;
    do {
      bytes += specs[end++].size();
    } while (end < specs.size() && bytes + specs[end].size() <= kTensorsAtATimeBytes);
    std::vector<GridTensor> tensors(end - begin);
    part = 0;
    pool.run(std::ssize(tensors), [&](std::int64_t i, int) {
      tensors[static_cast<std::size_t>(i)] = parts.base(static_cast<TensorIndex>(begin) + static_cast<TensorIndex>(i));
    });
    for (std::size_t delta = 0; delta < deltas.size(); ++delta) {
      part = delta + 1;
      for (std::size_t i = 0; i < tensors.size(); ++i) {
        FLOTILLA_RETURN_IF_ERROR(deltas[delta].apply(specs[begin + i], tensors[i]));
      }
    }
    part = 0;
    FLOTILLA_RETURN_IF_ERROR(use(static_cast<TensorIndex>(begin), tensors));
  }
  for (std::size_t delta = 0; delta < deltas.size(); ++delta) {
    part = delta + 1;
    FLOTILLA_RETURN_IF_ERROR(deltas[delta].finish());
  }
  return ok_status();
}

}  // namespace flotilla
