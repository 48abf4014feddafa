#pragma once

#include <atomic>
#include <span>
#include <vector>

#include "base/thread_pool.h"
#include "engine/engine.h"
#include "engine/kernels.h"
#include "engine/kv_pool.h"
#include "engine/packed_weights.h"
#include "engine/rope.h"

namespace flotilla {

// One token to compute: its KV goes to its position in the blocks of `table`, which hold all earlier positions (earlier
// rows of the same pass included).
struct ForwardRow {
  TokenId token = 0;
  std::int32_t position = 0;
  const std::int32_t* table = nullptr;
};

// The decoder over a slice of rows, with the scratch memory that it takes. A row's result depends on its own sequence
// only, never on the other rows. One caller; work is shared over the pool.
class ForwardPass {
 public:
  static constexpr std::int64_t kRowsMax = 256;     // rows in one pass
  static constexpr std::int64_t kHeadRowsMax = 64;  // rows whose logits exist at a time

  static std::int64_t bytes(const ModelDescription& description, const KernelTable& kernels, std::int64_t rows);
  // Borrows all four.
  static Result<std::unique_ptr<ForwardPass>> create(const ModelDescription& description, const KernelTable& kernels,
                                                     const PackedWeights& weights, KvPool& kv, ThreadPool& pool);

  // Computes all layers for at most kRowsMax rows. data_loss naming the layer when a value is NaN or infinite.
  Status run(std::span<const ForwardRow> rows);
  // Logits after the given rows of the last run, at most kHeadRowsMax, rising: row i at i * logits_stride(), each of
  // the padded vocabulary.
  Result<float*> logits(std::span<const std::int32_t> picked);
  std::int64_t logits_stride() const;

 private:
  ForwardPass(const ModelDescription& description, const KernelTable& kernels, const PackedWeights& weights, KvPool& kv,
              ThreadPool& pool);

  // body(i) for each i in [0, count), `grain` of them at a time.
  template <typename Body>
  void parallel(std::int64_t count, std::int64_t grain, const Body& body);
  void multiply(const PackedMatrix& w, std::int64_t rows, float* out, std::int64_t stride, bool add);
  // Writes a row's keys and values, rounded into the scratch `halves`, to its position.
  void store_kv(const ForwardRow& row, std::int32_t layer, const float* kv, std::uint16_t* halves);
  QuantizedRows quantized(std::int64_t cols) const;
  Status check(std::string_view what, std::int32_t layer);

  const ModelDescription& description_;
  const KernelTable& kernels_;
  const PackedWeights& weights_;
  KvPool& kv_;
  ThreadPool& pool_;
  RopeTables rope_;
  std::atomic<bool> broken_{false};  // some row of the present step is NaN or infinite

  PageBuffer memory_;
  // Rows lie stride_of(width) apart.
  float* x_ = nullptr;         // [rows][hidden] residual stream
  float* normed_ = nullptr;    // [threads][hidden or ffn] one row a thread
  float* wide_ = nullptr;      // [rows][q, k, v] or [rows][gate, up]
  float* mixed_ = nullptr;     // [rows][heads * head_dim] attention output
  float* logits_ = nullptr;    // [head rows][padded vocabulary]
  std::uint8_t* q_ = nullptr;  // [rows][padded columns]
  float* scales_ = nullptr;    // [rows][groups]
};

}  // namespace flotilla
