#pragma once

#include <cstdint>

namespace flotilla::row {

// Work on one row of a matrix in a single pass each; the loops are written so that the compiler makes vector code of
// them. Plain pointers, no threads: callers spread the rows.

// y = x / sqrt(mean(x^2) + epsilon) * weight; returns 1 / sqrt(mean(x^2) + epsilon).
float rms_norm(const float* x, const float* weight, std::int64_t n, float epsilon, float* y);
// y = x * scale * weight, with the scale that rms_norm returned.
void rms_norm_again(const float* x, const float* weight, std::int64_t n, float scale, float* y);
// dx += d(loss)/dx of rms_norm, given dy = d(loss)/dy.
void rms_norm_backward(const float* dy, const float* x, const float* weight, std::int64_t n, float scale, float* dx);
// sum[i] += dy[i] * x[i] * scale: a row's part of the gradient of the norm's weight.
void rms_norm_weight_gradient(const float* dy, const float* x, std::int64_t n, float scale, float* sum);

// Rotates the pairs (i, i + dim/2) of `heads` neighbouring heads by the angles whose cosine and sine are given
// ([dim/2] each); sign -1 rotates back.
void rotate(float* x, std::int64_t heads, std::int64_t dim, const float* cosine, const float* sine, float sign);

// h = silu(gate) * up, with gate and up one behind the other in gate_up [2n].
void swiglu(const float* gate_up, std::int64_t n, float* h);
// d_gate_up [2n] of swiglu, given dh [n].
void swiglu_backward(const float* dh, const float* gate_up, std::int64_t n, float* d_gate_up);

// x becomes what the fleet's arithmetic makes of it: groups of 64 values, amax / 127 as the unit, rounded half to even
// (docs/design/arithmetic.md). The last group may be shorter.
void fake_quantize(float* x, std::int64_t n);
// x rounded to bf16, half to even.
void round_to_bf16(float* x, std::int64_t n);

}  // namespace flotilla::row
