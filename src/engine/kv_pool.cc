#include "engine/kv_pool.h"

#include <algorithm>
#include <cstring>

#include "engine/address_sanitizer.h"

namespace flotilla {
namespace {

#if defined(FLOTILLA_POISON_KV)
constexpr bool kPoisons = true;
#else
constexpr bool kPoisons = false;
#endif
constexpr std::uint16_t kNan = 0x7e00;

}  // namespace

bool KvPool::poisons() { return kPoisons; }

void KvPool::poison(std::int64_t block) {
  if constexpr (kPoisons) {
    std::uint16_t* begin = data() + block * elements_;
    std::fill_n(begin, elements_, kNan);
    forbid_memory(begin, elements_ * static_cast<std::int64_t>(sizeof(kNan)));
  }
}

Result<KvPool> KvPool::create(std::int64_t blocks, std::int64_t elements) {
  KvPool pool;
  const std::int64_t bytes_a_block = elements * static_cast<std::int64_t>(sizeof(std::uint16_t));
  FLOTILLA_ASSIGN_OR_RETURN(pool.memory_, PageBuffer::allocate(blocks * bytes_a_block, "KV pool"));
  pool.elements_ = elements;
  pool.references_.resize(static_cast<std::size_t>(blocks));
  pool.free_.reserve(static_cast<std::size_t>(blocks));
  for (std::int64_t block = blocks; block-- > 0;) {
    pool.free_.push_back(static_cast<std::int32_t>(block));
    pool.poison(block);
  }
  pool.untouched_ = blocks;
  return pool;
}

std::int32_t KvPool::take() {
  FLOTILLA_CHECK(!free_.empty());
  const std::int32_t block = free_.back();
  free_.pop_back();
  untouched_ = std::min(untouched_, available());
  references_[static_cast<std::size_t>(block)] = 1;
  allow_memory(data() + block * elements_, elements_ * static_cast<std::int64_t>(sizeof(std::uint16_t)));
  return block;
}

std::int32_t KvPool::copy(std::int32_t block) {
  const std::int32_t fresh = take();
  std::memcpy(data() + fresh * elements_, data() + block * elements_,
              static_cast<std::size_t>(elements_) * sizeof(std::uint16_t));
  return fresh;
}

void KvPool::give_back(std::int64_t keep) {
  if constexpr (kPoisons) return;  // poison is to stay
  const std::int64_t bytes = elements_ * static_cast<std::int64_t>(sizeof(std::uint16_t));
  for (; untouched_ < available() - keep; ++untouched_) {
    memory_.discard(free_[static_cast<std::size_t>(untouched_)] * bytes, bytes);
  }
}

void KvPool::release(std::int32_t block) {
  std::int32_t& references = references_[static_cast<std::size_t>(block)];
  FLOTILLA_CHECK(references > 0);
  if (--references > 0) return;
  free_.push_back(block);
  poison(block);
}

}  // namespace flotilla
