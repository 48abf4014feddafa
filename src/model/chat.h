#pragma once

#include <span>
#include <string>
#include <vector>

#include "base/ids.h"
#include "base/status.h"
#include "model/tokenizer.h"

namespace flotilla {

struct ChatMessage {
  std::string role;  // "system", "user" or "assistant"
  std::string content;
};

// ChatML as the templates of SmolLM2 and Qwen2.5 write it: "<|im_start|>ROLE\nCONTENT<|im_end|>\n" for each message,
// and, when asked for, the opening of the assistant's turn. Content is encoded as plain text: it cannot forge a role.
// When the first message is not a system message, the default one that the tokenizer's chat template spells out comes
// first; no template, or one without a default, gives none.
Result<std::vector<TokenId>> encode_chat(const Tokenizer& tokenizer, std::span<const ChatMessage> messages,
                                         bool open_assistant_turn);

// The same for messages that follow others: no system message is added. Tokens of messages one after the other are
// those of all of them, so a conversation can be encoded turn by turn.
Result<std::vector<TokenId>> encode_turns(const Tokenizer& tokenizer, std::span<const ChatMessage> messages,
                                          bool open_assistant_turn);

// The id that ends a turn ("<|im_end|>"); not_found when the vocabulary has none.
Result<TokenId> end_of_turn(const Tokenizer& tokenizer);

}  // namespace flotilla
