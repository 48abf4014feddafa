#include "env/dictionary_turn.h"

namespace flotilla {
namespace {

constexpr std::string_view kSearchOpen = "<search>";
constexpr std::string_view kAnswerOpen = "<answer>";

std::string_view trimmed(std::string_view text) {
  constexpr std::string_view kSpace = " \t\r\n\v\f";
  const std::size_t begin = text.find_first_not_of(kSpace);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kSpace) + 1 - begin);
}

}  // namespace

DictionaryTurn read_dictionary_turn(std::string_view text) {
  const std::size_t search_end = text.find(kSearchClose);
  const std::size_t answer_end = text.find(kAnswerClose);
  if (search_end == answer_end) return {};  // neither
  const bool is_search = search_end < answer_end;
  const std::string_view open = is_search ? kSearchOpen : kAnswerOpen;
  const std::string_view before = text.substr(0, is_search ? search_end : answer_end);
  const std::size_t begin = before.rfind(open);
  if (begin == std::string_view::npos) return {};
  return {is_search ? DictionaryTurn::Kind::kSearch : DictionaryTurn::Kind::kAnswer,
          std::string(trimmed(before.substr(begin + open.size())))};
}

}  // namespace flotilla
