// Weights that the product needs after the present ones, asked for evenly while it computes: they come from memory, and
// the hardware's own prefetching stops short of them. Asking beyond the last ones is harmless.
// The including file opens an anonymous namespace inside flotilla; no #pragma once: part of one translation unit a
// file.
struct Prefetch {
  const std::int8_t* next;
  std::int64_t lines;  // of the cache, each group of columns

  // So that `tiles` tiles of `panels` panels ask for as many panels once.
  Prefetch(const std::int8_t* next, std::int64_t panels, std::int64_t tiles)
      : next(next), lines((panels * kActivationGroup * kLanes / 64 + tiles - 1) / tiles) {}

  void one_group() {
    for (std::int64_t i = 0; i < lines; ++i) __builtin_prefetch(next + 64 * i, 0, 2);
    next += 64 * lines;
  }
};
