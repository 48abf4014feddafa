#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

#include "learn/torch/attention.h"
#include "learn/torch/packed_batch.h"
#include "learn/torch/parameters.h"
#include "model/description.h"

namespace flotilla {

// What backward needs of a forward pass. T tokens; in the last block only the R rows that are read go past attention.
struct Tape {
  struct Block {
    at::Tensor input;             // [T, hidden]
    std::vector<float> norm;      // [T]: scales of the attention norm
    at::Tensor qkv;               // [T, width], rotated
    at::Tensor attended;          // [T or R, heads * head_dim]
    at::Tensor middle;            // [T or R, hidden]: after attention
    std::vector<float> mlp_norm;  // [T or R]
    at::Tensor gate_up;           // [T or R, 2 * ffn]
  };
  std::vector<Block> blocks;
  at::Tensor output;              // [R, hidden]: before the final norm
  std::vector<float> final_norm;  // [R]
};

// The decoder of a description with the mathematics of Hugging Face's Llama, in fp32: embedding, blocks, final norm
// (the head is head_loss.h). Backward is written out by hand and adds the gradient of each weight to its place in the
// flat buffer, so that micro-batches accumulate without a copy. One thread calls; libtorch's threads share the work.
//
// With `quantize`, the input of every matrix is rounded to one byte in groups of 64, and keys and values to bf16, as
// the fleet's arithmetic does; gradients pass straight through.
class Transformer {
 public:
  Transformer(const ModelDescription& description, bool quantize);

  // [R, hidden]: the normed output of batch.rows, ready for the head. With a tape, keeps what backward needs.
  at::Tensor forward(const ModelTensors& weights, const PackedBatch& batch, Tape* tape) const;

  // Adds d(loss)/d(weights) to `gradient`, given d_output = d(loss)/d(what forward returned). Empties the tape.
  void backward(const ModelTensors& weights, const PackedBatch& batch, const at::Tensor& d_output, Tape& tape,
                ModelTensors& gradient) const;

 private:
  const ModelDescription description_;
  const AttentionShape shape_;
  const bool quantize_;
};

}  // namespace flotilla
