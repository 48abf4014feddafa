#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace flotilla {

// The words of a text, for search and for comparing: runs of ASCII letters and digits and of bytes above 127, in lower
// case.
std::vector<std::string> words_of(std::string_view text);

// Text between white space.
std::vector<std::string_view> split_at_space(std::string_view text);

// Words that carry grammar and little meaning, in alphabetical order. Part of the environment's digest;
// docs/environments/dictionary.md lists them.
std::span<const std::string_view> function_words();
bool is_function_word(std::string_view word);

// How answers are compared: lower case, punctuation to spaces, the articles a, an and the removed, spaces squeezed. May
// be empty: then it equals no answer.
std::string normalized_answer(std::string_view answer);

}  // namespace flotilla
