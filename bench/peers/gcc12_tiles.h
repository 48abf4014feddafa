// Before everything in llama.cpp's sources: GCC 12's _tile_loadconfig tells the compiler that it reads eight bytes of the
// sixty-four, which then never stores the others, and the first instruction on tiles is an illegal one.
#pragma once
#if defined(__AMX_TILE__)
#include <immintrin.h>
#define _tile_loadconfig(config)                        \
  (__extension__({                                      \
    __asm__ volatile("" : : "r"(config) : "memory");    \
    _tile_loadconfig(config);                           \
  }))
#endif
