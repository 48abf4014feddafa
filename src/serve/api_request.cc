#include "serve/api_request.h"

#include <algorithm>
#include <array>
#include <limits>
#include <optional>
#include <set>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "model/chat.h"
#include "model/strict_json.h"

namespace flotilla {
namespace {

using nlohmann::json;

constexpr std::size_t kStopsMax = 4;
constexpr std::int32_t kTopMaxChat = 20;
constexpr std::int32_t kTopMaxCompletion = 5;
constexpr std::int32_t kDefaultTokensCompletion = 16;  // as the API documents it
constexpr double kTemperatureMax = 2;

// Fields that only make sense with one value here. Others would change the answer in ways that this server has not.
struct FixedField {
  std::string_view name, value;
};
constexpr FixedField kFixed[] = {
    {"frequency_penalty", "0"}, {"presence_penalty", "0"}, {"repetition_penalty", "1"}, {"min_p", "0"},
    {"logit_bias", "{}"},       {"store", "false"},
};
constexpr FixedField kFixedChat[] = {
    {"tools", "[]"},
    {"tool_choice", R"("none")"},
    {"functions", "[]"},
    {"function_call", R"("none")"},
    {"response_format", R"({"type":"text"})"},
    {"modalities", R"(["text"])"},
};
constexpr FixedField kFixedCompletion[] = {{"suffix", R"("")"}};
// Fields that name the caller or a place in somebody's data centre.
constexpr std::string_view kWithoutEffect[] = {
    "user", "metadata", "service_tier", "safety_identifier", "prompt_cache_key", "prompt_cache_retention"};

std::string shown(const json& value) {
  std::string text = value.dump(-1, ' ', false, json::error_handler_t::replace);
  constexpr std::size_t kShown = 60;
  if (text.size() > kShown) text = text.substr(0, kShown) + "...";
  return text;
}

// Thrown inside this file only: a request has dozens of places where it can be wrong, each of which ends the reading.
struct Refused {
  ApiError error;
};
[[noreturn]] void refuse(std::string_view field, std::string message, std::string code = "invalid_value") {
  throw Refused{
      {.message = fmt::format("{}: {}", field, message), .param = std::string(field), .code = std::move(code)}};
}
[[noreturn]] void refuse_type(std::string_view field, std::string_view expected, const json& value) {
  refuse(field, fmt::format("expected {}, got {}", expected, shown(value)), "invalid_type");
}

// An object whose fields are asked for one by one; those nobody asked for are refused at the end. Null is absence.
class Fields {
 public:
  Fields(const json& object, std::string path) : object_(object), path_(std::move(path)) {
    if (!object.is_object()) refuse_type(path_.empty() ? "body" : path_, "an object", object);
  }

  std::string path(std::string_view name) const {
    return path_.empty() ? std::string(name) : fmt::format("{}.{}", path_, name);
  }

  const json* find(std::string_view name) {
    const auto found = object_.find(name);
    known_.insert(std::string(name));
    return found == object_.end() || found->is_null() ? nullptr : &*found;
  }
  const json& require(std::string_view name) {
    if (const json* value = find(name)) return *value;
    refuse(path(name), "is required", "missing_required_parameter");
  }
  bool boolean(std::string_view name, bool fallback) {
    const json* value = find(name);
    if (value == nullptr) return fallback;
    if (!value->is_boolean()) refuse_type(path(name), "true or false", *value);
    return value->get<bool>();
  }
  std::optional<double> number(std::string_view name) {
    const json* value = find(name);
    if (value == nullptr) return std::nullopt;
    if (!value->is_number()) refuse_type(path(name), "a number", *value);
    return value->get<double>();
  }
  std::optional<std::int32_t> integer(std::string_view name, std::int32_t low, std::int32_t high) {
    const json* value = find(name);
    if (value == nullptr) return std::nullopt;
    if (!value->is_number_integer()) refuse_type(path(name), "an integer", *value);
    // Any 64-bit integer as a double stays on its side of the limits.
    if (const double number = value->get<double>(); number < low || number > high) {
      refuse(path(name), fmt::format("{} lies outside [{}, {}]", shown(*value), low, high));
    }
    return value->get<std::int32_t>();
  }
  std::string text(std::string_view name) {
    const json& value = require(name);
    if (!value.is_string()) refuse_type(path(name), "a string", value);
    return value.get<std::string>();
  }
  void only(const FixedField& field) {
    const json* value = find(field.name);
    if (value != nullptr && *value != json::parse(field.value)) {
      refuse(path(field.name), fmt::format("{} is not supported; leave it out or send {}", shown(*value), field.value),
             "unsupported_parameter");
    }
  }
  void ignore(std::string_view name) { find(name); }
  void refuse_unknown() const {
    for (const auto& [name, value] : object_.items()) {
      if (!known_.contains(name)) refuse(path(name), "is not a field that this server knows", "unknown_parameter");
    }
  }

 private:
  const json& object_;
  const std::string path_;
  std::set<std::string> known_;
};

// As a float; what is not 0 stays so.
float to_float(double value) {
  if (value <= 0) return 0;
  return std::max(static_cast<float>(value), std::numeric_limits<float>::denorm_min());
}

SamplingParams read_sampling(Fields& fields) {
  SamplingParams sampling;
  if (const auto temperature = fields.number("temperature")) {
    if (!(*temperature >= 0 && *temperature <= kTemperatureMax)) {
      refuse("temperature", fmt::format("{} lies outside [0, {}]", *temperature, kTemperatureMax));
    }
    sampling.temperature = to_float(*temperature);
  }
  if (const auto top_p = fields.number("top_p")) {
    if (!(*top_p > 0 && *top_p <= 1)) refuse("top_p", fmt::format("{} lies outside (0, 1]", *top_p));
    sampling.top_p = to_float(*top_p);
  }
  sampling.top_k = fields.integer("top_k", 0, std::numeric_limits<std::int32_t>::max()).value_or(0);
  return sampling;
}

std::uint64_t read_seed(Fields& fields, std::uint64_t fresh_seed) {
  const json* seed = fields.find("seed");
  if (seed == nullptr) return fresh_seed;
  if (!seed->is_number_integer()) refuse_type("seed", "an integer of 64 bits", *seed);
  return seed->is_number_unsigned() ? seed->get<std::uint64_t>()
                                    : static_cast<std::uint64_t>(seed->get<std::int64_t>());
}

std::vector<std::string> read_stops(Fields& fields) {
  const json* stop = fields.find("stop");
  if (stop == nullptr) return {};
  const json list = stop->is_array() ? *stop : json::array({*stop});
  if (list.size() > kStopsMax)
    refuse("stop", fmt::format("{} strings, at most {} are possible", list.size(), kStopsMax));
  std::vector<std::string> stops;
  for (const json& text : list) {
    if (!text.is_string()) refuse_type("stop", "a string or a list of strings", *stop);
    stops.push_back(text.get<std::string>());
    if (stops.back().empty()) refuse("stop", "an empty string would stop at once");
    if (stops.back().size() > kApiStopBytesMax) {
      refuse("stop",
             fmt::format("a string of {} bytes, at most {} are possible", stops.back().size(), kApiStopBytesMax));
    }
  }
  return stops;
}

// A string, or a list of parts of which each is text.
std::string read_content(const json& content, const std::string& path) {
  if (content.is_string()) return content.get<std::string>();
  if (!content.is_array()) refuse_type(path, "a string or a list of text parts", content);
  std::string text;
  for (std::size_t i = 0; i < content.size(); ++i) {
    Fields part(content[i], fmt::format("{}[{}]", path, i));
    if (const std::string type = part.text("type"); type != "text") {
      refuse(part.path("type"), fmt::format("\"{}\" is not supported, only \"text\"", type), "unsupported_parameter");
    }
    text += part.text("text");
    part.refuse_unknown();
  }
  return text;
}

// What cannot fit into the context is refused before it is encoded, which takes long.
[[noreturn]] void refuse_size(std::string_view field, std::string_view what, const ServedModel& model) {
  refuse(field, fmt::format("{} are more than the {} tokens that this server can hold", what, model.context),
         "context_length_exceeded");
}
void check_text_bytes(std::string_view field, std::size_t bytes, const ServedModel& model) {
  const auto context = static_cast<std::size_t>(model.context);
  if (bytes <= context) return;
  std::size_t longest = 1;
  for (TokenId id = 0; id < model.tokenizer->vocabulary(); ++id) {
    longest = std::max(longest, model.tokenizer->token_bytes(id, true).size());
  }
  if (bytes <= context * longest) return;
  refuse_size(field, fmt::format("{} bytes of text, of which a token holds {} at most,", bytes, longest), model);
}

std::vector<TokenId> read_messages(Fields& fields, const ServedModel& model) {
  const json& list = fields.require("messages");
  if (!list.is_array()) refuse_type("messages", "a list of messages", list);
  if (list.empty()) refuse("messages", "is empty");
  // Each begins and ends with a token.
  if (2 * list.size() > static_cast<std::size_t>(model.context)) {
    refuse_size("messages", fmt::format("{} messages", list.size()), model);
  }
  std::vector<ChatMessage> messages;
  std::size_t bytes = 0;
  for (std::size_t i = 0; i < list.size(); ++i) {
    Fields message(list[i], fmt::format("messages[{}]", i));
    std::string role = message.text("role");
    if (role == "developer") role = "system";
    if (role != "system" && role != "user" && role != "assistant") {
      refuse(message.path("role"),
             fmt::format("\"{}\" is not supported; expected system, developer, user or assistant", role));
    }
    messages.push_back({std::move(role), read_content(message.require("content"), message.path("content"))});
    bytes += messages.back().content.size();
    // What clients send back with an answer that they got.
    for (const std::string_view name : {"refusal", "audio", "function_call"}) message.only({name, "null"});
    for (const std::string_view name : {"tool_calls", "annotations"}) message.only({name, "[]"});
    message.refuse_unknown();
  }
  check_text_bytes("messages", bytes, model);
  auto tokens = encode_chat(*model.tokenizer, messages, true);
  if (!tokens.ok()) {
    throw Refused{{.message = tokens.status().message() + "; use /v1/completions",
                   .param = "messages",
                   .code = "no_chat_format"}};
  }
  return std::move(tokens).value();
}

bool is_token_list(const json& value) {
  return value.is_array() && !value.empty() &&
         std::ranges::all_of(value, [](const json& id) { return id.is_number_integer(); });
}

std::vector<TokenId> read_prompt(const json& prompt, const ServedModel& model) {
  std::vector<TokenId> tokens;
  if (prompt.is_string()) {
    const auto& text = prompt.get_ref<const std::string&>();
    check_text_bytes("prompt", text.size(), model);
    tokens = model.tokenizer->encode(text, true);
  } else if (is_token_list(prompt)) {
    if (prompt.size() > static_cast<std::size_t>(model.context)) {
      refuse_size("prompt", fmt::format("{} tokens", prompt.size()), model);
    }
    for (const json& id : prompt) {
      const bool negative = !id.is_number_unsigned() && id.get<std::int64_t>() < 0;
      if (negative || id.get<std::uint64_t>() >= static_cast<std::uint64_t>(model.vocabulary)) {
        refuse("prompt", fmt::format("token {} lies outside the vocabulary of {}", shown(id), model.vocabulary));
      }
      tokens.push_back(id.get<TokenId>());
    }
  } else if (!prompt.is_array() || !prompt.empty()) {
    refuse_type("prompt", "a string, a list of token ids, or a list of these", prompt);
  }
  if (tokens.empty()) refuse("prompt", "is empty: there is nothing to continue");
  return tokens;
}

std::vector<std::vector<TokenId>> read_prompts(Fields& fields, const ServedModel& model) {
  const json& prompt = fields.require("prompt");
  if (!prompt.is_array() || prompt.empty() || is_token_list(prompt)) return {read_prompt(prompt, model)};
  if (prompt.size() > static_cast<std::size_t>(kApiChoicesMax)) {
    refuse("prompt", fmt::format("{} prompts, at most {} are possible", prompt.size(), kApiChoicesMax));
  }
  std::vector<std::vector<TokenId>> prompts;
  for (const json& one : prompt) prompts.push_back(read_prompt(one, model));
  return prompts;
}

void read_logprobs(Fields& fields, ApiRequest& request) {
  if (request.kind == ApiKind::kChat) {
    request.logprobs = fields.boolean("logprobs", false);
    const auto top = fields.integer("top_logprobs", 0, kTopMaxChat);
    if (top && !request.logprobs) refuse("top_logprobs", "needs logprobs: true");
    request.generation.top = top.value_or(0);
  } else {
    const auto top = fields.integer("logprobs", 0, kTopMaxCompletion);
    request.logprobs = top.has_value();
    request.generation.top = top.value_or(0);
    request.echo = fields.boolean("echo", false);
    request.generation.score_prompt = request.echo && request.logprobs;
  }
}

// How many tokens each choice may have, within what the longest prompt leaves of the context.
void read_max_tokens(Fields& fields, const ServedModel& model, ApiRequest& request) {
  const bool chat = request.kind == ApiKind::kChat;
  std::int64_t longest = 0;
  for (const auto& prompt : request.generation.prompts) longest = std::max<std::int64_t>(longest, std::ssize(prompt));
  const std::int64_t room = model.context - longest;
  const std::int32_t least = request.echo ? 0 : 1;
  auto wanted = fields.integer("max_tokens", least, std::numeric_limits<std::int32_t>::max());
  std::string name = "max_tokens";
  if (chat) {
    if (const auto newer = fields.integer("max_completion_tokens", 1, std::numeric_limits<std::int32_t>::max())) {
      if (wanted && *wanted != *newer)
        refuse("max_tokens", fmt::format("{} contradicts max_completion_tokens {}", *wanted, *newer));
      wanted = newer;
      name = "max_completion_tokens";
    }
  }
  const std::int64_t tokens = wanted ? *wanted : chat ? std::max<std::int64_t>(room, 1) : kDefaultTokensCompletion;
  if (tokens > room) {
    const bool too_long = room < least;
    const std::string field = too_long ? (chat ? "messages" : "prompt") : name;
    refuse(
        field,
        fmt::format(
            "the prompt has {} tokens and the answer may have {}, together more than the {} that this server can hold",
            longest, tokens, model.context),
        "context_length_exceeded");
  }
  request.generation.max_tokens = static_cast<std::int32_t>(tokens);
}

// As JSON they take about a hundred times the bytes of their text, which one thread puts together for all clients.
void check_logprobs(const ApiRequest& request) {
  const GenerationRequest& generation = request.generation;
  if (!request.logprobs) return;
  std::int64_t tokens = 0;
  for (const auto& prompt : generation.prompts) {
    tokens += (generation.score_prompt ? std::ssize(prompt) : 0) + (request.stream ? 0 : generation.max_tokens);
  }
  const std::int64_t logprobs = tokens * generation.choices * (1 + generation.top);
  if (logprobs <= kApiLogprobsMax) return;
  refuse("logprobs",
         fmt::format("{} choices of {} tokens with {} alternatives are {} logprobs, at most {} are possible at once",
                     generation.choices, tokens, generation.top, logprobs, kApiLogprobsMax),
         "too_many_logprobs");
}

ApiRequest read_request(ApiKind kind, const json& body, const ServedModel& model, std::uint64_t fresh_seed) {
  Fields fields(body, "");
  ApiRequest request;
  request.kind = kind;
  GenerationRequest& generation = request.generation;
  if (const std::string name = fields.text("model"); name != model.name) {
    throw Refused{{.http_status = 404,
                   .message = fmt::format("model: \"{}\" is not served here, only \"{}\"", name, model.name),
                   .param = "model",
                   .code = "model_not_found"}};
  }
  for (const FixedField& field : kFixed) fields.only(field);
  for (const std::string_view name : kWithoutEffect) fields.ignore(name);
  generation.choices = fields.integer("n", 1, kApiChoicesMax).value_or(1);
  generation.sampling = read_sampling(fields);
  generation.seed = read_seed(fields, fresh_seed);
  generation.stop_strings = read_stops(fields);
  request.stream = fields.boolean("stream", false);
  if (const json* options = fields.find("stream_options")) {
    if (!request.stream) refuse("stream_options", "needs stream: true");
    Fields stream(*options, "stream_options");
    request.include_usage = stream.boolean("include_usage", false);
    stream.only({"include_obfuscation", "false"});
    stream.refuse_unknown();
  }
  read_logprobs(fields, request);
  if (kind == ApiKind::kChat) {
    for (const FixedField& field : kFixedChat) fields.only(field);
    fields.ignore("parallel_tool_calls");  // there are no tools
    generation.prompts = {read_messages(fields, model)};
  } else {
    for (const FixedField& field : kFixedCompletion) fields.only(field);
    fields.only({"best_of", std::to_string(generation.choices)});
    generation.prompts = read_prompts(fields, model);
    if (std::ssize(generation.prompts) * generation.choices > kApiChoicesMax) {
      refuse("n", fmt::format("{} for each of {} prompts; at most {} choices are possible", generation.choices,
                              generation.prompts.size(), kApiChoicesMax));
    }
  }
  read_max_tokens(fields, model, request);
  check_logprobs(request);
  fields.refuse_unknown();
  if (model.tokenizer->spec().eos >= 0) generation.stop_tokens.push_back(model.tokenizer->spec().eos);
  if (const auto turn = end_of_turn(*model.tokenizer); turn.ok()) generation.stop_tokens.push_back(*turn);
  return request;
}

}  // namespace

std::variant<ApiRequest, ApiError> parse_api_request(ApiKind kind, std::string_view body, const ServedModel& model,
                                                     std::uint64_t fresh_seed) {
  const auto parsed = parse_strict_json(body);
  if (!parsed.ok()) {
    return ApiError{.message = "the body is not JSON that can be read: " + parsed.status().message(),
                    .code = "invalid_json"};
  }
  try {
    return read_request(kind, *parsed, model, fresh_seed);
  } catch (Refused& refused) {
    return std::move(refused.error);
  }
}

}  // namespace flotilla
