#include "engine/kv_pool.h"

#include <algorithm>
#include <cstring>

namespace flotilla {

Result<KvPool> KvPool::create(std::int64_t blocks, std::int64_t elements) {
  KvPool pool;
  const std::int64_t bytes_a_block = elements * static_cast<std::int64_t>(sizeof(std::uint16_t));
  FLOTILLA_ASSIGN_OR_RETURN(pool.memory_, PageBuffer::allocate(blocks * bytes_a_block, "KV pool"));
  pool.elements_ = elements;
  pool.references_.resize(static_cast<std::size_t>(blocks));
  pool.free_.reserve(static_cast<std::size_t>(blocks));
  for (std::int64_t block = blocks; block-- > 0;) pool.free_.push_back(static_cast<std::int32_t>(block));
  return pool;
}

std::int32_t KvPool::take() {
  FLOTILLA_CHECK(!free_.empty());
  const std::int32_t block = free_.back();
  free_.pop_back();
  references_[static_cast<std::size_t>(block)] = 1;
#ifndef NDEBUG
  constexpr std::uint16_t kNan = 0x7e00;  // whoever reads what was never written gets it in the result
  std::fill_n(data() + block * elements_, elements_, kNan);
#endif
  return block;
}

std::int32_t KvPool::copy(std::int32_t block) {
  const std::int32_t fresh = take();
  std::memcpy(data() + fresh * elements_, data() + block * elements_,
              static_cast<std::size_t>(elements_) * sizeof(std::uint16_t));
  return fresh;
}

void KvPool::release(std::int32_t block) {
  std::int32_t& references = references_[static_cast<std::size_t>(block)];
  FLOTILLA_CHECK(references > 0);
  if (--references == 0) free_.push_back(block);
}

}  // namespace flotilla
