#include <string_view>
#include <vector>

#include "engine/engine.h"
#include "engine/kernels.h"

#if defined(__x86_64__)
#include <cpuid.h>
#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif
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
    case Isa::kAvxVnni: return "avx-vnni";
    case Isa::kAvx512: return "avx512";
    case Isa::kAmx: return "amx";
    case Isa::kNeon: return "neon";
    case Isa::kNeonDot: return "neon-dot";
  }
  return "unknown";
}

#if defined(__x86_64__)
namespace {

// Whether the processor has tiles of bytes and the system lets this process use them: a process asks once, since each
// of its threads then takes eight kilobytes more to save.
bool tiles_allowed() {
#if defined(__linux__)
  constexpr unsigned kTiles = 1u << 24, kBytes = 1u << 25;    // of leaf 7
  constexpr int kRequestPermission = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, newer than some headers
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0 || (d & kTiles) == 0 || (d & kBytes) == 0) return false;
  static const bool allowed = ::syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
  return allowed;
#else
  return false;
#endif
}

}  // namespace
#endif

std::vector<Isa> supported_isas() {
  std::vector<Isa> isas = {Isa::kScalar};
#if defined(__x86_64__)
  unsigned a = 0, b = 0, c = 0, d = 0;  // Clang's builtin knows neither f16c nor avxvnni
  const bool f16c = __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_F16C) != 0;
  const bool avx2 = f16c && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
                      __builtin_cpu_supports("avx512vnni");
  if (avx2) isas.push_back(Isa::kAvx2);
  const bool avx_vnni = __get_cpuid_count(7, 1, &a, &b, &c, &d) != 0 && (a & bit_AVXVNNI) != 0;
  if (avx2 && avx_vnni) isas.push_back(Isa::kAvxVnni);
  if (avx2 && avx512) isas.push_back(Isa::kAvx512);
  if (avx2 && avx512 && tiles_allowed()) isas.push_back(Isa::kAmx);
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
    case Isa::kAvxVnni: return avx_vnni_kernels(two_bytes);
    case Isa::kAvx512: return avx512_kernels(two_bytes);
    case Isa::kAmx: return amx_kernels(two_bytes);
    case Isa::kNeon: return neon_kernels(two_bytes);
    case Isa::kNeonDot: return neon_dot_kernels(two_bytes);
    case Isa::kAuto:
    case Isa::kScalar: break;
  }
  return scalar_kernels(two_bytes);
}

}  // namespace flotilla
