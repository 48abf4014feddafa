#pragma once

#include <cstdint>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace flotilla {

// While it lives, this thread computes as IEEE 754 says: to nearest, subnormal numbers kept, no traps. What a library
// may have set before (flush to zero, say) comes back afterwards.
class FloatMode {
 public:
  FloatMode() : before_(get()) { set(kIeee); }
  ~FloatMode() { set(before_); }
  FloatMode(const FloatMode&) = delete;
  FloatMode& operator=(const FloatMode&) = delete;

  // The register that holds the mode. For tests, too.
#if defined(__x86_64__)
  using Register = std::uint32_t;
  static constexpr Register kIeee = 0x1f80;  // the value after reset: all exceptions masked
  static Register get() { return _mm_getcsr(); }
  static void set(Register value) { _mm_setcsr(value); }
#elif defined(__aarch64__)
  using Register = std::uint64_t;
  static constexpr Register kIeee = 0;
  static Register get() {
    Register value;
    asm volatile("mrs %0, fpcr" : "=r"(value));
    return value;
  }
  static void set(Register value) { asm volatile("msr fpcr, %0" ::"r"(value) : "memory"); }
#else
  using Register = std::uint32_t;
  static constexpr Register kIeee = 0;
  static Register get() { return 0; }
  static void set(Register) {}
#endif

 private:
  Register before_;
};

}  // namespace flotilla
