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

// ChatML as SmolLM2's template writes it: "<|im_start|>ROLE\nCONTENT<|im_end|>\n" for each message, and, when asked
// for, the opening of the assistant's turn. Content is encoded as plain text: it cannot forge a role. SmolLM2's
// template puts a default system message first when the first message is not a system message.
Result<std::vector<TokenId>> encode_chat(const Tokenizer& tokenizer, std::span<const ChatMessage> messages,
                                         bool open_assistant_turn);

// The id that ends a turn ("<|im_end|>"); not_found when the vocabulary has none.
Result<TokenId> end_of_turn(const Tokenizer& tokenizer);

}  // namespace flotilla
