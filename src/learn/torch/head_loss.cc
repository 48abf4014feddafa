#include "learn/torch/head_loss.h"

#include <algorithm>

#include <ATen/ops/_log_softmax.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

namespace flotilla {
namespace {

// Logits of one go: 256 rows of a vocabulary of 49,152 are 50 MB.
constexpr std::int64_t kRows = 256;

// Calls f(first row, row count, log pi [rows, vocabulary], targets) for each go.
template <typename F>
void for_each_go(const at::Tensor& output, const at::Tensor& head, std::span<const PackedTarget> targets,
                 double temperature, F f) {
  std::size_t next = 0;
  for (std::int64_t first = 0; first < output.size(0); first += kRows) {
    const std::int64_t count = std::min(kRows, output.size(0) - first);
    at::Tensor logits = at::mm(output.narrow(0, first, count), head.t());
    if (temperature != 1) logits.div_(temperature);
    const at::Tensor log_pi = at::_log_softmax(logits, 1, false);
    const std::size_t begin = next;
    while (next < targets.size() && targets[next].row < first + count) ++next;
    f(first, count, log_pi, targets.subspan(begin, next - begin));
  }
}

}  // namespace

at::Tensor head_loss(const at::Tensor& output, const at::Tensor& head, std::span<const PackedTarget> targets,
                     double temperature, const TargetLoss& loss, at::Tensor& d_head) {
  at::Tensor d_output = at::zeros_like(output);
  for_each_go(output, head, targets, temperature,
              [&](std::int64_t first, std::int64_t count, at::Tensor log_pi, std::span<const PackedTarget> mine) {
                const std::int64_t vocabulary = head.size(0);
                std::vector<float> gradients;
                at::Tensor sums = at::zeros({count, 1}, output.options());
                float* sum = sums.mutable_data_ptr<float>();
                const float* table = log_pi.const_data_ptr<float>();
                bool any = false;
                for (const PackedTarget& target : mine) {
                  const std::int64_t row = target.row - first;
                  const double gradient = loss(target, table[row * vocabulary + target.token]) / temperature;
                  gradients.push_back(static_cast<float>(gradient));
                  sum[row] -= gradients.back();
                  any |= gradient != 0;
                }
                if (!any) return;
                // d(logits) of a row = sum over its targets of g (onehot - pi).
                at::Tensor d_logits = log_pi.exp_().mul_(sums);
                float* d = d_logits.mutable_data_ptr<float>();
                for (std::size_t i = 0; i < mine.size(); ++i) {
                  d[(mine[i].row - first) * vocabulary + mine[i].token] += gradients[i];
                }
                at::Tensor d_rows = d_output.narrow(0, first, count);
                at::mm_out(d_rows, d_logits, head);
                d_head.addmm_(d_logits.t(), output.narrow(0, first, count));
              });
  return d_output;
}

std::vector<float> head_logprobs(const at::Tensor& output, const at::Tensor& head,
                                 std::span<const PackedTarget> targets, double temperature) {
  std::vector<float> logprobs;
  logprobs.reserve(targets.size());
  for_each_go(output, head, targets, temperature,
              [&](std::int64_t first, std::int64_t, const at::Tensor& log_pi, std::span<const PackedTarget> mine) {
                const float* table = log_pi.const_data_ptr<float>();
                for (const PackedTarget& target : mine) {
                  logprobs.push_back(table[(target.row - first) * head.size(0) + target.token]);
                }
              });
  return logprobs;
}

}  // namespace flotilla
