#pragma once

#include <cstdint>

#if defined(__SANITIZE_ADDRESS__)
#define FLOTILLA_ADDRESS_SANITIZER 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define FLOTILLA_ADDRESS_SANITIZER 1
#endif
#endif

#if defined(FLOTILLA_ADDRESS_SANITIZER)
#include <sanitizer/asan_interface.h>
#endif

namespace flotilla {

// From the one to the other, touching the memory ends a program built with AddressSanitizer. Nothing happens in others.
inline void forbid_memory([[maybe_unused]] const void* begin, [[maybe_unused]] std::int64_t bytes) {
#if defined(FLOTILLA_ADDRESS_SANITIZER)
  __asan_poison_memory_region(begin, static_cast<std::size_t>(bytes));
#endif
}
inline void allow_memory([[maybe_unused]] const void* begin, [[maybe_unused]] std::int64_t bytes) {
#if defined(FLOTILLA_ADDRESS_SANITIZER)
  __asan_unpoison_memory_region(begin, static_cast<std::size_t>(bytes));
#endif
}

}  // namespace flotilla
