#pragma once

#include <optional>
#include <vector>

#include "base/ids.h"
#include "base/status.h"
#include "base/thread_pool.h"
#include "engine/kernels.h"
#include "engine/page_buffer.h"
#include "model/description.h"
#include "model/grid.h"

namespace flotilla {

// The weights of one decoder block as the kernels want them. Matrices that read the same activations are one.
struct PackedBlock {
  std::vector<float> attention_norm;
  PackedMatrix qkv;             // q, then k, then v
  std::vector<float> qkv_bias;  // empty without biases; zeros where only some have one
  PackedMatrix o;
  std::vector<float> mlp_norm;
  PackedMatrix gate_up;  // gate, then up
  PackedMatrix down;
};

// A whole version of the weights in the layout of one kernel table; the only copy that an engine holds. Memory is taken
// once and loading writes over it. Reading is safe from any number of threads while no load runs.
class PackedWeights {
 public:
  static std::int64_t bytes(const ModelDescription& description, const KernelTable& kernels);
  static Result<PackedWeights> create(const ModelDescription& description, const KernelTable& kernels);

  // The state was checked against the description. It may be made out of what is here: a tensor is written once it is
  // shown. After an error of the source nothing here is of use.
  Status load(const GridSource& state, ThreadPool& pool);
  // As it was loaded: packing loses nothing.
  GridTensor unpack(TensorIndex tensor) const;

  const PackedBlock& block(std::int32_t layer) const { return blocks_[static_cast<std::size_t>(layer)]; }
  const PackedMatrix& head() const { return head_; }
  const std::vector<float>& final_norm() const { return final_norm_; }
  // x[i] = value of the token's embedding, q * scale rounded once.
  void embed(TokenId token, float* x) const;

 private:
  // Where the rows of a matrix of the description lie.
  struct Place {
    PackedMatrix matrix;
    std::int64_t first_panel = 0;
  };
  void find_places();
  void load_vectors();

  ModelDescription description_;
  PageBuffer memory_;
  std::vector<Place> places_;        // by tensor; empty ones of vectors
  std::vector<GridTensor> vectors_;  // by tensor, as loaded; empty ones of matrices
  std::vector<PackedBlock> blocks_;
  PackedMatrix head_;
  std::optional<PackedMatrix> embedding_;  // absent when tied to the head
  std::vector<float> final_norm_;
};

}  // namespace flotilla
