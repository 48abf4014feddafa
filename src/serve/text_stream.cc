#include "serve/text_stream.h"

#include <algorithm>
#include <iterator>
#include <string_view>
#include <utility>

#include "model/tokenizer_utf8.h"

namespace flotilla {
namespace {

bool ends_inside_character(std::string_view text) {
  for (std::size_t tail = 1; tail <= std::min<std::size_t>(3, text.size()); ++tail) {
    if (utf8_unfinished(text.substr(text.size() - tail))) return true;
  }
  return false;
}

// The longest end of `text` that is a beginning of `stop`.
std::size_t overlap(std::string_view text, std::string_view stop) {
  std::size_t length = std::min(text.size(), stop.size() - 1);
  while (length > 0 && !text.ends_with(stop.substr(0, length))) --length;
  return length;
}

}  // namespace

TextStream::TextStream(const Tokenizer& tokenizer, std::vector<std::string> stops)
    : tokenizer_(tokenizer), stops_(std::move(stops)) {}

TextStream::Piece TextStream::push(ScoredToken token) {
  text_ += tokenizer_.token_bytes(token.token);
  held_.push_back({std::move(token), text_.size()});
  std::size_t stop = std::string::npos;
  for (const std::string& text : stops_) stop = std::min(stop, text_.find(text));
  if (stop == std::string::npos) return release(safe_bytes());
  Piece piece = release(stop);
  piece.stopped = true;
  text_.clear();
  held_.clear();
  return piece;
}

TextStream::Piece TextStream::finish() { return release(text_.size()); }

TextStream::Piece TextStream::release(std::size_t bytes) {
  Piece piece;
  std::size_t begin = 0;
  auto kept = held_.begin();
  for (; kept != held_.end() && (begin < bytes || kept->end == begin); ++kept) {
    begin = kept->end;
    piece.tokens.push_back(std::move(kept->token));
  }
  held_.erase(held_.begin(), kept);
  for (Held& held : held_) held.end -= bytes;
  piece.text = text_.substr(0, bytes);
  text_.erase(0, bytes);
  return piece;
}

std::size_t TextStream::safe_bytes() const {
  std::size_t reach = 0;
  for (const std::string& stop : stops_) reach = std::max(reach, overlap(text_, stop));
  const auto is_safe = [&](const Held& held) {
    return held.end + reach <= text_.size() && !ends_inside_character(std::string_view(text_).substr(0, held.end));
  };
  const auto last = std::find_if(held_.rbegin(), held_.rend(), is_safe);
  return last == held_.rend() ? 0 : last->end;
}

}  // namespace flotilla
