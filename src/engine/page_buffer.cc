#include "engine/page_buffer.h"

#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include "engine/address_sanitizer.h"

namespace flotilla {

PageBuffer::~PageBuffer() {
  if (data_ == nullptr) return;
  allow_memory(data_, size_);  // whoever gets the addresses next knows nothing of what was forbidden
  munmap(data_, static_cast<std::size_t>(size_));
}

Result<PageBuffer> PageBuffer::allocate(std::int64_t bytes, std::string_view what) {
  PageBuffer buffer;
  if (bytes == 0) return buffer;
  void* data =
      mmap(nullptr, static_cast<std::size_t>(bytes), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED) return resource_exhausted(fmt::format("{}: no memory for {} bytes", what, bytes));
  buffer.data_ = static_cast<std::uint8_t*>(data);
  buffer.size_ = bytes;
#ifdef MADV_HUGEPAGE
  madvise(data, static_cast<std::size_t>(bytes), MADV_HUGEPAGE);  // a hint: refusing it is fine
#endif
  return buffer;
}

void PageBuffer::discard(std::int64_t offset, std::int64_t bytes) const {
  const std::int64_t page = sysconf(_SC_PAGESIZE);
  const std::int64_t begin = (offset + page - 1) / page * page, end = (offset + bytes) / page * page;
  if (begin < end) madvise(data_ + begin, static_cast<std::size_t>(end - begin), MADV_DONTNEED);
}

}  // namespace flotilla
