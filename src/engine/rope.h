#pragma once

#include <cstdint>
#include <vector>

namespace flotilla {

// ln, exp and (cos, sin) in double from plain IEEE operations, so that every machine gets the same bits where a C
// library might not. Errors stay within a few units of the last place. x > 0 and normal for the first; |x| < 700 for
// the second; 0 <= x < 2^20 for the third.
double exact_log(double x);
double exact_exp(double x);
void exact_cos_sin(double x, double* cosine, double* sine);

// cos and sin of position * theta^(-2i/head_dim), computed in double and rounded once: [positions][head_dim / 2] each.
struct RopeTables {
  RopeTables(std::int32_t positions, std::int32_t head_dim, double theta);
  const float* cosines(std::int32_t position) const { return cosines_.data() + position * half_; }
  const float* sines(std::int32_t position) const { return sines_.data() + position * half_; }

 private:
  std::int64_t half_;
  std::vector<float> cosines_;
  std::vector<float> sines_;
};

}  // namespace flotilla
