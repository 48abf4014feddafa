#include <string_view>
#include <vector>

#include "engine/engine.h"
#include "engine/kernels.h"

#if defined(__x86_64__)
#include <cpuid.h>
#elif defined(__aarch64__) && defined(__linux__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

namespace flotilla {

std::string_view isa_name(Isa isa) {
  switch (isa) {
    case Isa::kAuto: return "auto";
    case Isa::kScalar: return "scalar";
    case Isa::kAvx2: return "avx2";
    case Isa::kAvx512: return "avx512";
    case Isa::kNeon: return "neon";
    case Isa::kNeonDot: return "neon-dot";
  }
  return "unknown";
}

std::vector<Isa> supported_isas() {
  std::vector<Isa> isas = {Isa::kScalar};
#if defined(__x86_64__)
  unsigned a = 0, b = 0, c = 0, d = 0;  // Clang's builtin does not know f16c
  const bool f16c = __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_F16C) != 0;
  const bool avx2 = f16c && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
                      __builtin_cpu_supports("avx512vnni");
  if (avx2) isas.push_back(Isa::kAvx2);
  if (avx2 && avx512) isas.push_back(Isa::kAvx512);
#elif defined(__aarch64__)
  isas.push_back(Isa::kNeon);  // part of the architecture
#if defined(__linux__)
  if ((getauxval(AT_HWCAP) & HWCAP_ASIMDDP) != 0) isas.push_back(Isa::kNeonDot);
#elif defined(__ARM_FEATURE_DOTPROD)
  isas.push_back(Isa::kNeonDot);
#endif
#endif
  return isas;
}

KernelTable kernels_of(Isa isa, bool two_bytes) {
  switch (isa) {
    case Isa::kAvx2: return avx2_kernels(two_bytes);
    case Isa::kAvx512: return avx512_kernels(two_bytes);
    case Isa::kNeon: return neon_kernels(two_bytes);
    case Isa::kNeonDot: return neon_dot_kernels(two_bytes);
    case Isa::kAuto:
    case Isa::kScalar: break;
  }
  return scalar_kernels(two_bytes);
}

}  // namespace flotilla
