#include "serve/conversation.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "model/chat.h"

namespace flotilla {

Conversation::Conversation(Engine& engine, const Tokenizer& tokenizer, ConversationOptions options)
    : engine_(engine), tokenizer_(tokenizer), options_(std::move(options)) {}

Conversation::~Conversation() { reset(); }

void Conversation::reset() {
  if (sequence_) engine_.close(*sequence_);
  sequence_.reset();
  unsaid_.clear();
}

std::int32_t Conversation::tokens() const {
  return (sequence_ ? engine_.length(*sequence_) : 0) + static_cast<std::int32_t>(unsaid_.size());
}

std::int32_t Conversation::context() const {
  return static_cast<std::int32_t>(
      std::min<std::int64_t>(engine_.description().context, engine_.usage().blocks_total * kBlockTokens));
}

Result<Conversation::End> Conversation::say(std::string_view message,
                                            const std::function<void(std::string_view)>& on_text,
                                            const std::function<bool()>& stop) {
  FLOTILLA_ASSIGN_OR_RETURN(const TokenId turn_end, end_of_turn(tokenizer_));
  std::vector<ChatMessage> turn = {{"user", std::string(message)}};
  if (!sequence_ && !options_.system.empty()) turn.insert(turn.begin(), {"system", options_.system});
  FLOTILLA_ASSIGN_OR_RETURN(const std::vector<TokenId> added,
                            sequence_ ? encode_turns(tokenizer_, turn, true) : encode_chat(tokenizer_, turn, true));
  // One token of an answer at least has to fit.
  if (tokens() + std::ssize(added) >= context()) {
    return resource_exhausted(
        fmt::format("the context is full: {} of its {} tokens are taken and this message needs {}", tokens(), context(),
                    added.size()));
  }
  if (!sequence_) {
    FLOTILLA_ASSIGN_OR_RETURN(sequence_, engine_.open());
  }
  std::vector<TokenId> next = std::exchange(unsaid_, {});
  next.insert(next.end(), added.begin(), added.end());

  StreamingDecoder decoder(tokenizer_);
  End end = End::kMaxTokens;
  for (std::int32_t generated = 0;; ++generated) {
    const std::int32_t position = engine_.length(*sequence_) + static_cast<std::int32_t>(next.size());
    if (generated == options_.max_tokens) break;
    if (position >= context()) {
      end = End::kContext;
      break;
    }
    if (generated > 0 && stop()) {
      end = End::kStopped;
      break;
    }
    Readout readout{
        .offset = static_cast<std::int32_t>(next.size()) - 1,
        .sampling = options_.sampling,
        .key = {.seed = options_.seed, .group = 0, .episode = 0, .position = static_cast<std::uint32_t>(position)},
        .target = std::nullopt};
    const Chunk chunk{*sequence_, next, {&readout, 1}};
    auto result = engine_.forward({&chunk, 1});
    if (!result.ok()) {  // and nothing was appended
      if (generated == 0 && engine_.length(*sequence_) > 0) {
        next.resize(next.size() - added.size());
        unsaid_ = std::move(next);
      } else if (generated > 0 && result.status().code() == StatusCode::kResourceExhausted) {
        end = End::kContext;
        break;
      } else {
        reset();
      }
      return std::move(result).status();
    }
    const TokenId token = result->front().token;
    next = {token};
    if (token == turn_end || token == tokenizer_.spec().eos) {
      end = End::kTurn;
      break;
    }
    on_text(decoder.push(token));
  }
  on_text(decoder.finish());
  // The next turn begins after the end of this one, whether the model said it or not.
  if (end == End::kTurn) {
    next.back() = turn_end;
  } else {
    next.push_back(turn_end);
  }
  const std::vector<TokenId> line_end = tokenizer_.encode("\n");
  next.insert(next.end(), line_end.begin(), line_end.end());
  unsaid_ = std::move(next);
  return end;
}

}  // namespace flotilla
