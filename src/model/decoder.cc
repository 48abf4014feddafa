#include <algorithm>
#include <utility>

#include "model/tokenizer.h"
#include "model/tokenizer_utf8.h"

namespace flotilla {

std::string StreamingDecoder::push(TokenId id) {
  pending_ += tokenizer_.token_bytes(id);
  std::size_t held = 0;
  for (std::size_t tail = 1; tail <= std::min<std::size_t>(3, pending_.size()); ++tail) {
    if (utf8_unfinished(std::string_view(pending_).substr(pending_.size() - tail))) held = tail;
  }
  std::string ready = pending_.substr(0, pending_.size() - held);
  pending_.erase(0, ready.size());
  return ready;
}

std::string StreamingDecoder::finish() { return std::exchange(pending_, {}); }

}  // namespace flotilla
