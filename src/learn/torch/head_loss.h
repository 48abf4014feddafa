#pragma once

#include <functional>
#include <span>

#include <ATen/core/Tensor.h>

#include "learn/torch/packed_batch.h"

namespace flotilla {

// Called once a target with log pi of its token; returns d(loss)/d(log pi).
using TargetLoss = std::function<double(const PackedTarget& target, float log_pi)>;

// The head and the loss behind it in one go, a few rows at a time, so that the logits of a batch never exist together:
// logits = output W^T / temperature, log pi = log softmax(logits). output is [R, hidden]; targets as in PackedBatch.
// Calls `loss` for each target, adds d(loss)/dW to d_head and returns d(loss)/d(output) [R, hidden].
at::Tensor head_loss(const at::Tensor& output, const at::Tensor& head, std::span<const PackedTarget> targets,
                     double temperature, const TargetLoss& loss, at::Tensor& d_head);

// log pi of each target, in order.
std::vector<float> head_logprobs(const at::Tensor& output, const at::Tensor& head,
                                 std::span<const PackedTarget> targets, double temperature);

}  // namespace flotilla
