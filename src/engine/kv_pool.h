#pragma once

#include <cstdint>
#include <vector>

#include "base/status.h"
#include "engine/page_buffer.h"

namespace flotilla {

// Fixed-size blocks of KV with reference counts. One block holds kBlockTokens positions of all layers. Not thread safe;
// never allocates after creation.
//
// Debug and sanitizer builds poison what holds no KV: blocks are full of NaN until they are written and again once they
// are released, so that a wrong read ends in an error of the pass. Under AddressSanitizer, touching a block that nobody
// holds ends the program.
class KvPool {
 public:
  // elements: half-precision values in one block.
  static Result<KvPool> create(std::int64_t blocks, std::int64_t elements);

  static bool poisons();

  std::int64_t total() const { return static_cast<std::int64_t>(references_.size()); }
  std::int64_t available() const { return static_cast<std::int64_t>(free_.size()); }

  std::int32_t take();                    // with one reference; available() > 0. Contents are undefined
  std::int32_t copy(std::int32_t block);  // a new block with the same contents; available() > 0
  void share(std::int32_t block) { ++references_[static_cast<std::size_t>(block)]; }
  void release(std::int32_t block);
  // Gives the memory of free blocks back to the system, but for the `keep` ones released last. Keeps
  // all where poisons().
  void give_back(std::int64_t keep);
  bool shared(std::int32_t block) const { return references_[static_cast<std::size_t>(block)] > 1; }

  std::uint16_t* data() const { return reinterpret_cast<std::uint16_t*>(memory_.data()); }
  std::int64_t stride() const { return elements_; }

 private:
  void poison(std::int64_t block);

  PageBuffer memory_;
  std::int64_t elements_ = 0;
  std::vector<std::int32_t> references_;
  std::vector<std::int32_t> free_;  // the one released last is taken first: its memory is warm
  std::int64_t untouched_ = 0;      // at the beginning of free_: blocks without memory
};

}  // namespace flotilla
