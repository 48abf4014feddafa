#include "engine/kernels.h"

namespace flotilla {
KernelTable avx512_kernels(bool two_bytes) { return avx2_kernels(two_bytes); }
}  // namespace flotilla
