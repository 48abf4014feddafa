#include "model/chat.h"

#include <fmt/format.h>

namespace flotilla {
namespace {

constexpr std::string_view kTurnStart = "<|im_start|>";
constexpr std::string_view kTurnEnd = "<|im_end|>";

// TEXT of "<|im_start|>system\nTEXT<|im_end|>" in a template, where that is one piece of literal text: the message for
// chats that have none. The line end is in the text of a template as it is or as Jinja escapes it.
std::string_view default_system(std::string_view chat_template) {
  for (const std::string_view line_end : {"\n", "\\n"}) {
    const std::string opening = fmt::format("{}system{}", kTurnStart, line_end);
    for (auto at = chat_template.find(opening); at != std::string_view::npos;
         at = chat_template.find(opening, at + 1)) {
      const std::string_view rest = chat_template.substr(at + opening.size());
      const std::string_view text = rest.substr(0, rest.find(kTurnEnd));
      if (text.size() < rest.size() && text.find_first_of("'\"{}\\") == std::string_view::npos) return text;
    }
  }
  return {};
}

Result<TokenId> find_special(const Tokenizer& tokenizer, std::string_view token) {
  const auto id = tokenizer.find(token);
  if (!id || !tokenizer.is_special(*id)) {
    return not_found(fmt::format("the vocabulary has no special token \"{}\", which ChatML needs", token));
  }
  return *id;
}

}  // namespace

Result<TokenId> end_of_turn(const Tokenizer& tokenizer) { return find_special(tokenizer, kTurnEnd); }

Result<std::vector<TokenId>> encode_turns(const Tokenizer& tokenizer, std::span<const ChatMessage> messages,
                                          bool open_assistant_turn) {
  FLOTILLA_ASSIGN_OR_RETURN(const TokenId start, find_special(tokenizer, kTurnStart));
  FLOTILLA_ASSIGN_OR_RETURN(const TokenId end, find_special(tokenizer, kTurnEnd));
  std::vector<TokenId> ids;
  const auto append = [&](std::string_view text) {
    const std::vector<TokenId> more = tokenizer.encode(text);
    ids.insert(ids.end(), more.begin(), more.end());
  };
  for (const ChatMessage& message : messages) {
    if (message.role != "system" && message.role != "user" && message.role != "assistant") {
      return invalid_argument(
          fmt::format("a chat message has the role \"{}\"; expected system, user or assistant", message.role));
    }
    ids.push_back(start);
    append(fmt::format("{}\n{}", message.role, message.content));
    ids.push_back(end);
    append("\n");
  }
  if (open_assistant_turn) {
    ids.push_back(start);
    append("assistant\n");
  }
  return ids;
}

Result<std::vector<TokenId>> encode_chat(const Tokenizer& tokenizer, std::span<const ChatMessage> messages,
                                         bool open_assistant_turn) {
  const std::string_view system = default_system(tokenizer.spec().chat_template);
  if (messages.empty() || messages.front().role == "system" || system.empty()) {
    return encode_turns(tokenizer, messages, open_assistant_turn);
  }
  std::vector<ChatMessage> all = {{"system", std::string(system)}};
  all.insert(all.end(), messages.begin(), messages.end());
  return encode_turns(tokenizer, all, open_assistant_turn);
}

}  // namespace flotilla
