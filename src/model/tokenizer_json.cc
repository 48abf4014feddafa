#include <algorithm>
#include <array>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "model/bpe.h"
#include "model/strict_json.h"
#include "model/tokenizer.h"

namespace flotilla {
namespace {

using Json = nlohmann::json;

// The only forms of each part that give the ids of our own encode(). Members that are not listed are free: they concern
// offsets, which we don't have.
const Json kByteLevel = {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", true}};
const Json kSmollm = {{"type", "Sequence"},
                      {"pretokenizers", {{{"type", "Digits"}, {"individual_digits", true}}, kByteLevel}}};
const Json kQwen2 = {
    {"type", "Sequence"},
    {"pretokenizers",
     {{{"type", "Split"},
       {"pattern",
        {{"Regex",
          R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)"}}},
       {"behavior", "Isolated"},
       {"invert", false}},
      {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}}}}};
const Json kNfc = {{"type", "NFC"}};

// A pre-tokenizer of pre_tokenizer.h, as tokenizer.json spells it together with its normalizer.
struct Form {
  const char* name;
  const Json& pre_tokenizer;
  Json normalizer;
};
const Form kForms[] = {{"gpt-2", kByteLevel, nullptr}, {"smollm", kSmollm, nullptr}, {"qwen2", kQwen2, kNfc}};

// A value as it appears in an error message.
std::string shown(const Json& value) {
  constexpr std::size_t kMax = 120;
  std::string text = value.dump(-1, ' ', true);
  return text.size() <= kMax ? text : text.substr(0, kMax) + "...";
}

Status unsupported(std::string_view field, const Json& value, std::string_view expected) {
  return invalid_argument(fmt::format("{} is {}; expected {}", field, shown(value), expected));
}

const Json& member(const Json& object, const char* key) {
  static const Json kNull;
  if (!object.is_object()) return kNull;
  const auto found = object.find(key);
  return found == object.end() ? kNull : *found;
}

// True when `value` has every member of `pattern`, with equal values.
bool has_form(const Json& value, const Json& pattern) {
  if (pattern.is_array()) {
    return value.is_array() && std::equal(value.begin(), value.end(), pattern.begin(), pattern.end(), has_form);
  }
  if (!pattern.is_object()) return value == pattern;
  return std::all_of(pattern.items().begin(), pattern.items().end(),
                     [&](const auto& item) { return has_form(member(value, item.key().c_str()), item.value()); });
}

Result<TokenId> token_id(const Json& value, std::string_view field) {
  if (!value.is_number_integer() || value < 0 || value >= (1 << 24)) {
    return unsupported(field, value, "a token id");
  }
  return value.get<TokenId>();
}

// Ids are dense, so `tokens` has a place for each before the first is read: a file cannot ask for more than it holds.
Status place(std::vector<std::string>& tokens, TokenId id, const std::string& text) {
  if (static_cast<std::size_t>(id) >= tokens.size()) {
    return invalid_argument(fmt::format("\"{}\" has id {} in a vocabulary of {}", text, id, tokens.size()));
  }
  if (!tokens[id].empty() && tokens[id] != text) {
    return invalid_argument(fmt::format("id {} is both \"{}\" and \"{}\"", id, tokens[id], text));
  }
  tokens[id] = text;
  return ok_status();
}

Status read_vocabulary(const Json& vocab, const Json& added, TokenizerSpec& spec) {
  if (!vocab.is_object()) return unsupported("model.vocab", vocab, "an object of tokens and ids");
  std::size_t outside = 0;  // added tokens that the model's own vocabulary does not list
  if (added.is_array()) {
    outside = std::count_if(added.begin(), added.end(), [&](const Json& token) {
      const Json& content = member(token, "content");
      return content.is_string() && !vocab.contains(content.get_ref<const std::string&>());
    });
  }
  spec.tokens.resize(vocab.size() + outside);
  for (const auto& [token, value] : vocab.items()) {
    FLOTILLA_ASSIGN_OR_RETURN(const TokenId id, token_id(value, fmt::format("model.vocab \"{}\"", token)));
    FLOTILLA_RETURN_IF_ERROR(place(spec.tokens, id, token).with_context("model.vocab"));
  }
  return ok_status();
}

// Older files write a merge as "a b", newer ones as ["a", "b"].
Status read_merges(const Json& merges, TokenizerSpec& spec) {
  if (!merges.is_array()) return unsupported("model.merges", merges, "a list of pairs");
  for (const Json& merge : merges) {
    if (merge.is_string()) {
      const std::string& text = merge.get_ref<const std::string&>();
      const std::size_t space = text.find(' ');
      if (space != std::string::npos && text.find(' ', space + 1) == std::string::npos) {
        spec.merges.emplace_back(text.substr(0, space), text.substr(space + 1));
        continue;
      }
    } else if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string()) {
      spec.merges.emplace_back(merge[0].get<std::string>(), merge[1].get<std::string>());
      continue;
    }
    return unsupported(fmt::format("model.merges[{}]", spec.merges.size()), merge, "two tokens");
  }
  return ok_status();
}

// `normalized`: there is a normalizer, so that a token could be meant to match its result; ours match the text before.
Status read_added_tokens(const Json& added, bool normalized, TokenizerSpec& spec) {
  if (added.is_null()) return ok_status();
  if (!added.is_array()) return unsupported("added_tokens", added, "a list");
  for (std::size_t i = 0; i < added.size(); ++i) {
    const std::string field = fmt::format("added_tokens[{}]", i);
    const Json& content = member(added[i], "content");
    if (!content.is_string()) return unsupported(field + ".content", content, "a text");
    for (const char* option : {"single_word", "lstrip", "rstrip"}) {
      const Json& value = member(added[i], option);
      if (value != false) return unsupported(fmt::format("{}.{}", field, option), value, "false");
    }
    if (normalized && member(added[i], "normalized") != false) {
      return unsupported(field + ".normalized", member(added[i], "normalized"), "false");
    }
    const Json& special = member(added[i], "special");
    if (!special.is_boolean()) return unsupported(field + ".special", special, "true or false");
    FLOTILLA_ASSIGN_OR_RETURN(const TokenId id, token_id(member(added[i], "id"), field + ".id"));
    FLOTILLA_RETURN_IF_ERROR(place(spec.tokens, id, content.get<std::string>()).with_context(field));
    (special.get<bool>() ? spec.special : spec.added).push_back(id);
  }
  return ok_status();
}

Status check_model(const Json& model) {
  if (member(model, "type") != "BPE") return unsupported("model.type", member(model, "type"), "\"BPE\"");
  for (const char* option : {"byte_fallback", "ignore_merges"}) {
    const Json& value = member(model, option);
    if (!value.is_null() && value != false) return unsupported(fmt::format("model.{}", option), value, "false");
  }
  for (const char* option : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    const Json& value = member(model, option);
    if (!value.is_null() && value != "") return unsupported(fmt::format("model.{}", option), value, "null or \"\"");
  }
  const Json& dropout = member(model, "dropout");
  if (!dropout.is_null() && dropout != 0.0) return unsupported("model.dropout", dropout, "null");
  return ok_status();
}

// An unknown token stands for bytes without a token: where there are none it may be named, elsewhere it changes the
// ids.
Status check_unknown_token(const Json& model, const std::vector<std::string>& tokens) {
  const Json& unknown = member(model, "unk_token");
  if (unknown.is_null()) return ok_status();
  for (int b = 0; b < 256; ++b) {
    const std::string token = bytes_to_alphabet(std::string(1, static_cast<char>(b)));
    if (std::find(tokens.begin(), tokens.end(), token) == tokens.end()) {
      return unsupported("model.unk_token", unknown, fmt::format("null, as byte {:02x} has no token", b));
    }
  }
  return ok_status();
}

Result<std::string> read_pre_tokenizer(const Json& json) {
  const Json& pre_tokenizer = member(json, "pre_tokenizer");
  const Json& normalizer = member(json, "normalizer");
  std::string known;
  for (const Form& form : kForms) {
    if (has_form(pre_tokenizer, form.pre_tokenizer)) {
      if (has_form(normalizer, form.normalizer)) return std::string(form.name);
      return unsupported("normalizer", normalizer, form.normalizer.dump());
    }
    known += fmt::format("{}{}", known.empty() ? "" : " or ", form.pre_tokenizer.dump());
  }
  return unsupported("pre_tokenizer", pre_tokenizer, known);
}

// What comes after the model must leave the ids alone.
Status check_post_processor(const Json& value) {
  const Json& type = member(value, "type");
  if (value.is_null() || type == "ByteLevel") return ok_status();
  const Json& single = member(value, "single");
  const bool plain = type == "TemplateProcessing" && single.is_array() && single.size() == 1 &&
                     member(single[0], "Sequence").is_object();
  return plain ? ok_status() : unsupported("post_processor", value, "null, ByteLevel or a template without tokens");
}

Status read_own_fields(const Json& own, TokenizerSpec& spec) {
  if (own.is_null()) return ok_status();
  for (const auto& [key, target] : {std::pair{"bos", &spec.bos}, {"eos", &spec.eos}, {"pad", &spec.pad}}) {
    const std::string field = fmt::format("model.flotilla.{}", key);
    const Json& value = member(own, key);
    if (value.is_null()) continue;
    FLOTILLA_ASSIGN_OR_RETURN(*target, token_id(value, field));
  }
  const Json& chat_template = member(own, "chat_template");
  if (!chat_template.is_string()) return unsupported("model.flotilla.chat_template", chat_template, "a text");
  spec.chat_template = chat_template.get<std::string>();
  return ok_status();
}

Result<TokenizerSpec> read_spec(const Json& json) {
  if (!json.is_object()) return unsupported("tokenizer.json", json, "an object");
  for (const char* part : {"truncation", "padding"}) {
    const Json& value = member(json, part);
    if (!value.is_null()) return unsupported(part, value, "null");
  }
  const Json& model = member(json, "model");
  const Json& decoder = member(json, "decoder");
  if (member(decoder, "type") != "ByteLevel") return unsupported("decoder", decoder, "{\"type\":\"ByteLevel\"}");
  FLOTILLA_RETURN_IF_ERROR(check_post_processor(member(json, "post_processor")));
  FLOTILLA_RETURN_IF_ERROR(check_model(model));
  TokenizerSpec spec;
  FLOTILLA_ASSIGN_OR_RETURN(spec.pre_tokenizer, read_pre_tokenizer(json));
  FLOTILLA_RETURN_IF_ERROR(read_vocabulary(member(model, "vocab"), member(json, "added_tokens"), spec));
  FLOTILLA_RETURN_IF_ERROR(read_merges(member(model, "merges"), spec));
  FLOTILLA_RETURN_IF_ERROR(
      read_added_tokens(member(json, "added_tokens"), !member(json, "normalizer").is_null(), spec));
  FLOTILLA_RETURN_IF_ERROR(check_unknown_token(model, spec.tokens));
  FLOTILLA_RETURN_IF_ERROR(read_own_fields(member(model, "flotilla"), spec));
  return spec;
}

}  // namespace

Result<std::shared_ptr<const Tokenizer>> Tokenizer::from_json(std::string_view text) {
  FLOTILLA_ASSIGN_OR_RETURN(const Json json, parse_strict_json(text).with_context("tokenizer.json"));
  FLOTILLA_ASSIGN_OR_RETURN(TokenizerSpec spec, read_spec(json).with_context("tokenizer.json"));
  return create(std::move(spec)).with_context("tokenizer.json");
}

std::string Tokenizer::to_json() const {
  const TokenizerSpec& from = spec();
  Json vocab = Json::object();
  for (std::size_t id = 0; id < from.tokens.size(); ++id) vocab[from.tokens[id]] = id;
  Json merges = Json::array();
  for (const auto& [left, right] : from.merges) merges.push_back({left, right});

  std::vector<TokenId> whole = from.special;
  whole.insert(whole.end(), from.added.begin(), from.added.end());
  std::sort(whole.begin(), whole.end());
  Json added = Json::array();
  for (const TokenId id : whole) {
    added.push_back({{"id", id},
                     {"content", from.tokens[id]},
                     {"single_word", false},
                     {"lstrip", false},
                     {"rstrip", false},
                     {"normalized", false},
                     {"special", is_special(id)}});
  }

  const Form& form =
      *std::find_if(std::begin(kForms), std::end(kForms), [&](const Form& f) { return from.pre_tokenizer == f.name; });
  // Its members beyond the form: they concern offsets.
  Json byte_level = kByteLevel;
  byte_level["trim_offsets"] = true;
  Json pre_tokenizer = form.pre_tokenizer;
  (pre_tokenizer.contains("pretokenizers") ? pre_tokenizer["pretokenizers"][1] : pre_tokenizer)["trim_offsets"] = true;
  Json own = {{"chat_template", from.chat_template}};
  for (const auto& [key, id] : {std::pair{"bos", from.bos}, {"eos", from.eos}, {"pad", from.pad}}) {
    if (id >= 0) own[key] = id;
  }
  const Json json = {{"version", "1.0"},
                     {"truncation", nullptr},
                     {"padding", nullptr},
                     {"added_tokens", std::move(added)},
                     {"normalizer", form.normalizer},
                     {"pre_tokenizer", std::move(pre_tokenizer)},
                     {"post_processor", nullptr},
                     {"decoder", byte_level},
                     {"model",
                      {{"type", "BPE"},
                       {"dropout", nullptr},
                       {"unk_token", nullptr},
                       {"continuing_subword_prefix", nullptr},
                       {"end_of_word_suffix", nullptr},
                       {"fuse_unk", false},
                       {"byte_fallback", false},
                       {"ignore_merges", false},
                       {"vocab", std::move(vocab)},
                       {"merges", std::move(merges)},
                       {"flotilla", std::move(own)}}}};
  return json.dump();
}

}  // namespace flotilla
