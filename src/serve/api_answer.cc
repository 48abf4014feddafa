#include "serve/api_answer.h"

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "model/tokenizer_utf8.h"

namespace flotilla {
namespace {

using nlohmann::ordered_json;

// JSON has no infinity: what cannot be sampled.
constexpr float kLogprobMin = -9999.0f;

std::string dumped(const ordered_json& json) {
  return json.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
}
// Without the brackets of a list or an object.
std::string_view inner(std::string_view json) { return json.substr(1, json.size() - 2); }
std::string server_sent(const std::string& data) { return "data: " + data + "\n\n"; }
float finite(float logprob) { return std::max(logprob, kLogprobMin); }

std::int64_t characters(std::string_view text) {
  return std::ranges::count_if(text, [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; });
}

// As the completions API shows tokens: those that are no text by themselves with their bytes in hexadecimal.
std::string token_text(std::string_view bytes) {
  if (utf8_valid_prefix(bytes) == bytes.size()) return std::string(bytes);
  std::string text = "bytes:";
  for (const char c : bytes) text += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
  return text;
}

const char* reason_name(FinishReason reason) { return reason == FinishReason::kStop ? "stop" : "length"; }

ordered_json usage_json(const GenerationUsage& usage) {
  return {{"prompt_tokens", usage.prompt_tokens},
          {"completion_tokens", usage.completion_tokens},
          {"total_tokens", usage.prompt_tokens + usage.completion_tokens}};
}

}  // namespace

std::vector<GenerationEvent> in_pieces(GenerationEvent event, std::size_t logprobs_max) {
  std::vector<GenerationEvent> pieces;
  std::vector<ScoredToken> prompt = std::move(event.prompt);
  event.prompt.clear();
  std::size_t logprobs = 0;
  for (ScoredToken& token : prompt) {
    const std::size_t more = 1 + token.top.size();
    if (pieces.empty() || logprobs + more > logprobs_max) {
      pieces.push_back({.request = event.request, .choice = event.choice});
      logprobs = 0;
    }
    logprobs += more;
    pieces.back().prompt.push_back(std::move(token));
  }
  if (!pieces.empty()) event.prompt = std::move(pieces.back().prompt), pieces.pop_back();
  pieces.push_back(std::move(event));
  return pieces;
}

struct ApiAnswer::ChoiceState {
  bool opened = false;                               // the stream has said who speaks
  std::int64_t offset = 0;                           // characters of the tokens so far
  std::string text = {};                             // of a whole answer, as the rest
  std::map<std::string, std::string> logprobs = {};  // the lists of that name as JSON, without brackets
  std::optional<FinishReason> finish = {};
};

struct ApiAnswer::Impl {
  ApiRequest request;
  const ServedModel& model;
  std::string id;
  std::int64_t created;
  std::vector<ChoiceState> choices;

  bool chat() const { return request.kind == ApiKind::kChat; }
  std::string_view bytes(TokenId token) const { return model.tokenizer->token_bytes(token, true); }

  // What all objects begin with.
  ordered_json head(std::string_view object) const {
    return {{"id", id},
            {"object", object},
            {"created", created},
            {"model", model.name},
            {"system_fingerprint", model.fingerprint}};
  }

  ordered_json chat_token(TokenId token, float logprob) const {
    const std::string_view text = bytes(token);
    return {{"token", std::string(text)},
            {"logprob", finite(logprob)},
            {"bytes", std::vector<std::uint8_t>(text.begin(), text.end())}};
  }

  ordered_json chat_logprobs(const std::vector<ScoredToken>& tokens) const {
    ordered_json content = ordered_json::array();
    for (const ScoredToken& token : tokens) {
      ordered_json one = chat_token(token.token, *token.logprob);
      ordered_json top = ordered_json::array();
      for (const TokenLogprob& other : token.top) top.push_back(chat_token(other.token, other.logprob));
      one["top_logprobs"] = std::move(top);
      content.push_back(std::move(one));
    }
    return {{"content", std::move(content)}, {"refusal", nullptr}};
  }

  // The first `prompt_tokens` are the prompt's, of which special tokens are shown.
  ordered_json completion_logprobs(const std::vector<ScoredToken>& tokens, std::size_t prompt_tokens,
                                   std::int64_t& offset) const {
    ordered_json texts = ordered_json::array(), logprobs = texts, tops = texts, offsets = texts;
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      const ScoredToken& token = tokens[i];
      texts.push_back(token_text(bytes(token.token)));
      offsets.push_back(offset);
      offset += characters(model.tokenizer->token_bytes(token.token, i < prompt_tokens));
      logprobs.push_back(token.logprob ? ordered_json(finite(*token.logprob)) : ordered_json(nullptr));
      ordered_json top = token.logprob ? ordered_json::object() : ordered_json(nullptr);
      if (token.logprob) {
        for (const TokenLogprob& other : token.top) top.emplace(token_text(bytes(other.token)), finite(other.logprob));
        top.emplace(token_text(bytes(token.token)), finite(*token.logprob));
      }
      tops.push_back(std::move(top));
    }
    return {{"tokens", std::move(texts)},
            {"token_logprobs", std::move(logprobs)},
            {"top_logprobs", request.generation.top > 0 ? std::move(tops) : ordered_json(nullptr)},
            {"text_offset", std::move(offsets)}};
  }

  ordered_json logprobs(const GenerationEvent& event, std::int64_t& offset) const {
    if (!request.logprobs) return nullptr;
    std::vector<ScoredToken> tokens = event.prompt;
    tokens.insert(tokens.end(), event.tokens.begin(), event.tokens.end());
    return chat() ? chat_logprobs(tokens) : completion_logprobs(tokens, event.prompt.size(), offset);
  }

  // Writes those of a whole answer behind the text.
  void write_logprobs(const ChoiceState& choice, std::string& text) const {
    std::int64_t offset = 0;
    const ordered_json empty = logprobs({}, offset);
    const char* before = "{";
    for (const auto& [name, list] : empty.items()) {
      text.append(before).append(dumped(name)).append(":");
      before = ",";
      const auto items = choice.logprobs.find(name);
      if (items == choice.logprobs.end()) {
        text += dumped(list);
      } else {
        text.append("[").append(items->second).append("]");
      }
    }
    text += empty.is_null() ? "null" : "}";
  }

  std::string prompt_text(std::int32_t choice) const {
    const auto prompt = static_cast<std::size_t>(choice / request.generation.choices);
    return model.tokenizer->decode(request.generation.prompts[prompt], true);
  }

  // One chunk of a stream: `part` is what the choice says.
  std::string chunk(std::int32_t choice, const char* key, ordered_json part, ordered_json logprobs,
                    std::optional<FinishReason> finish) const {
    ordered_json json = head(chat() ? "chat.completion.chunk" : "text_completion");
    const ordered_json one = {{"index", choice},
                              {key, std::move(part)},
                              {"logprobs", std::move(logprobs)},
                              {"finish_reason", finish ? ordered_json(reason_name(*finish)) : ordered_json(nullptr)}};
    json["choices"] = ordered_json::array({one});
    if (request.include_usage) json["usage"] = nullptr;
    return server_sent(dumped(json));
  }
};

ApiAnswer::ApiAnswer(ApiRequest request, const ServedModel& model, std::string id, std::int64_t created) {
  const std::size_t choices = request.generation.prompts.size() * static_cast<std::size_t>(request.generation.choices);
  const char* prefix = request.kind == ApiKind::kChat ? "chatcmpl-" : "cmpl-";
  impl_ = std::make_unique<Impl>(
      Impl{std::move(request), model, prefix + std::move(id), created, std::vector<ChoiceState>(choices)});
}

ApiAnswer::~ApiAnswer() = default;

std::string ApiAnswer::chunks(const GenerationEvent& event) {
  Impl& answer = *impl_;
  if (event.end) {
    if (!event.end->ok()) return server_sent(api_error_of(*event.end).to_json());
    std::string last;
    if (answer.request.include_usage) {
      ordered_json json = answer.head(answer.chat() ? "chat.completion.chunk" : "text_completion");
      json["choices"] = ordered_json::array();
      json["usage"] = usage_json(event.usage);
      last = server_sent(dumped(json));
    }
    return last + server_sent("[DONE]");
  }
  ChoiceState& choice = answer.choices[static_cast<std::size_t>(event.choice)];
  std::string out;
  std::string text = event.text;
  if (!choice.opened) {
    choice.opened = true;
    if (answer.chat()) {
      out = answer.chunk(event.choice, "delta", {{"role", "assistant"}, {"content", ""}}, nullptr, std::nullopt);
    } else if (answer.request.echo) {
      text = answer.prompt_text(event.choice) + text;
    }
  }
  if (answer.chat()) {
    if (!text.empty() || !event.tokens.empty()) {
      out +=
          answer.chunk(event.choice, "delta", {{"content", text}}, answer.logprobs(event, choice.offset), std::nullopt);
    }
    if (event.finish) out += answer.chunk(event.choice, "delta", ordered_json::object(), nullptr, event.finish);
  } else {
    out += answer.chunk(event.choice, "text", text, answer.logprobs(event, choice.offset), event.finish);
  }
  return out;
}

void ApiAnswer::add(const GenerationEvent& event) {
  ChoiceState& choice = impl_->choices[static_cast<std::size_t>(event.choice)];
  choice.text += event.text;
  const ordered_json logprobs = impl_->logprobs(event, choice.offset);
  for (const auto& [name, list] : logprobs.items()) {
    if (!list.is_array() || list.empty()) continue;
    std::string& all = choice.logprobs[name];
    if (!all.empty()) all += ',';
    all += inner(dumped(list));
  }
  if (event.finish) choice.finish = event.finish;
}

std::string ApiAnswer::whole(const GenerationUsage& usage) const {
  const Impl& answer = *impl_;
  std::string text = dumped(answer.head(answer.chat() ? "chat.completion" : "text_completion"));
  text.back() = ',';
  text += "\"choices\":[";
  for (std::size_t i = 0; i < answer.choices.size(); ++i) {
    const ChoiceState& choice = answer.choices[i];
    const auto index = static_cast<std::int32_t>(i);
    ordered_json one = {{"index", index}};
    if (answer.chat()) {
      one["message"] = {{"role", "assistant"}, {"content", choice.text}, {"refusal", nullptr}};
    } else {
      one["text"] = (answer.request.echo ? answer.prompt_text(index) : "") + choice.text;
    }
    text += fmt::format("{}{{{},\"logprobs\":", i > 0 ? "," : "", inner(dumped(one)));
    answer.write_logprobs(choice, text);
    text += fmt::format(",\"finish_reason\":\"{}\"}}", reason_name(choice.finish.value_or(FinishReason::kStop)));
  }
  text.append("],\"usage\":").append(dumped(usage_json(usage))).append("}");
  return text;
}

}  // namespace flotilla
