#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#include "base/status.h"

namespace flotilla {

// Zeroed memory straight from the system, in huge pages where it gives them: aligned to 64 bytes, and pages cost
// nothing until they are touched.
class PageBuffer {
 public:
  PageBuffer() = default;
  ~PageBuffer();
  PageBuffer(PageBuffer&& other) noexcept { swap(other); }
  PageBuffer& operator=(PageBuffer&& other) noexcept {
    swap(other);
    return *this;
  }

  // resource_exhausted when the system refuses, naming `what`.
  static Result<PageBuffer> allocate(std::int64_t bytes, std::string_view what);

  // Gives the whole pages of [offset, offset + bytes) back: zeros again, which cost nothing until they are touched.
  void discard(std::int64_t offset, std::int64_t bytes) const;

  std::uint8_t* data() const { return data_; }
  std::int64_t size() const { return size_; }

 private:
  void swap(PageBuffer& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
  }
  std::uint8_t* data_ = nullptr;
  std::int64_t size_ = 0;
};

}  // namespace flotilla
