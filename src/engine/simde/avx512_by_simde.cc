// kernels_avx512.cc once more, with each AVX-512 instruction emulated.
#include "engine/simde/emulated_avx512.h"

#define avx512_kernels emulated_avx512_kernels
#include "engine/kernels_avx512.cc"
