#pragma once

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace flotilla {

// While it lives, this thread computes as IEEE 754 says: to nearest, subnormal numbers kept, no traps. What a library
// may have set before (flush to zero, say) comes back afterwards.
class FloatMode {
 public:
#if defined(__x86_64__)
  FloatMode() : before_(_mm_getcsr()) { _mm_setcsr(0x1f80); }  // the value after reset: all exceptions masked
  ~FloatMode() { _mm_setcsr(before_); }
#else
  FloatMode() {}
#endif
  FloatMode(const FloatMode&) = delete;
  FloatMode& operator=(const FloatMode&) = delete;

#if defined(__x86_64__)
 private:
  unsigned before_;
#endif
};

}  // namespace flotilla
