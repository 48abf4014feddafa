#include "cli/worker_allocator.h"

#include <malloc.h>

namespace flotilla {

void use_worker_allocator() {
  constexpr int kBig = 1 << 20;
  mallopt(M_MMAP_THRESHOLD, kBig);
  mallopt(M_TRIM_THRESHOLD, kBig);
  mallopt(M_ARENA_MAX, 1);
}

}  // namespace flotilla
