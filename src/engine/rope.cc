#include "engine/rope.h"

#include <cmath>

namespace flotilla {
namespace {

constexpr double kRound = 0x1.8p+52;  // adding it rounds to an integer

// ln 2 and pi/2 in parts whose products with small integers are exact (the constants of fdlibm's k_rem_pio2 and e_log).
constexpr double kLn2High = 6.93147180369123816490e-01;
constexpr double kLn2Low = 1.90821492927058770002e-10;
constexpr double kHalfPi1 = 1.57079632673412561417e+00;
constexpr double kHalfPi2 = 6.07710050630396597660e-11;
constexpr double kHalfPi3 = 2.02226624879595063154e-21;

}  // namespace

double exact_log(double x) {
  int exponent = 0;
  double m = std::frexp(x, &exponent);  // in [1/2, 1)
  if (m < 0.70710678118654752440) {
    m *= 2;
    --exponent;
  }
  // ln m = 2 atanh(s), s = (m - 1) / (m + 1), |s| < 0.172: the series up to s^23.
  const double s = (m - 1) / (m + 1);
  const double z = s * s;
  double series = 0;
  for (int k = 23; k >= 1; k -= 2) series = series * z + 1.0 / k;
  return exponent * kLn2High + (2 * s * series + exponent * kLn2Low);
}

double exact_exp(double x) {
  const double n = (x * 1.44269504088896340736 + kRound) - kRound;
  const double r = (x - n * kLn2High) - n * kLn2Low;
  double series = 1;
  for (int k = 14; k >= 1; --k) series = series * r / k + 1;  // Taylor, |r| <= ln(2)/2
  return std::ldexp(series, static_cast<int>(n));
}

void exact_cos_sin(double x, double* cosine, double* sine) {
  const double n = (x * 0.63661977236758134308 + kRound) - kRound;
  const double r = ((x - n * kHalfPi1) - n * kHalfPi2) - n * kHalfPi3;
  const double z = r * r;
  double s = 1;  // sin r = r * (1 - z/(2*3) * (1 - z/(4*5) * ...)), |r| <= pi/4
  for (int k = 18; k >= 2; k -= 2) s = 1 - z / (k * (k + 1)) * s;
  s *= r;
  double c = 1;  // cos r = 1 - z/(1*2) * (1 - z/(3*4) * ...)
  for (int k = 19; k >= 1; k -= 2) c = 1 - z / (k * (k + 1)) * c;
  switch (static_cast<std::int64_t>(n) & 3) {
    case 0: *cosine = c, *sine = s; break;
    case 1: *cosine = -s, *sine = c; break;
    case 2: *cosine = -c, *sine = -s; break;
    default: *cosine = s, *sine = -c; break;
  }
}

RopeTables::RopeTables(std::int32_t positions, std::int32_t head_dim, double theta) : half_(head_dim / 2) {
  cosines_.resize(static_cast<std::size_t>(positions * half_));
  sines_.resize(cosines_.size());
  const double log_theta = exact_log(theta);
  for (std::int64_t i = 0; i < half_; ++i) {
    const double frequency = exact_exp(-(static_cast<double>(2 * i) / head_dim) * log_theta);
    for (std::int64_t position = 0; position < positions; ++position) {
      double cosine = 0;
      double sine = 0;
      exact_cos_sin(static_cast<double>(position) * frequency, &cosine, &sine);
      const auto at = static_cast<std::size_t>(position * half_ + i);
      cosines_[at] = static_cast<float>(cosine);
      sines_[at] = static_cast<float>(sine);
    }
  }
}

}  // namespace flotilla
