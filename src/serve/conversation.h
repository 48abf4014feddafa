#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/engine.h"
#include "model/tokenizer.h"

namespace flotilla {

struct ConversationOptions {
  std::string system = {};  // empty: the model's own
  SamplingParams sampling = {};
  std::uint64_t seed = 0;
  std::int32_t max_tokens = 1024;  // of one answer
};

// A chat with one person that keeps its KV from turn to turn: each message costs its own tokens only. The first answer
// to a message is what `flotilla serve` gives for the same seed. One thread; nobody else uses the engine meanwhile.
class Conversation {
 public:
  // Borrows both.
  Conversation(Engine& engine, const Tokenizer& tokenizer, ConversationOptions options);
  ~Conversation();
  Conversation(const Conversation&) = delete;
  Conversation& operator=(const Conversation&) = delete;

  enum class End { kTurn, kMaxTokens, kContext, kStopped };
  // Says `message` and hands the answer to `on_text` as it comes. Ends early, at a token, when a stop is asked for;
  // what was said stays part of the conversation. resource_exhausted when the message does not fit into what is left of
  // the context, not_found when the model has no chat format: nothing changes, as after any error before the answer's
  // first token. A later error forgets everything that was said.
  Result<End> say(std::string_view message, const std::function<void(std::string_view)>& on_text,
                  const std::function<bool()>& stop);
  // Forgets everything that was said.
  void reset();

  std::int32_t tokens() const;   // said so far
  std::int32_t context() const;  // that there can be

 private:
  Engine& engine_;
  const Tokenizer& tokenizer_;
  const ConversationOptions options_;
  std::optional<SequenceId> sequence_;
  std::vector<TokenId> unsaid_;  // tokens of the conversation that are not computed yet
};

}  // namespace flotilla
