#include "rollout/group_file.h"

#include <algorithm>
#include <array>
#include <limits>
#include <map>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "model/safetensors.h"
#include "model/strict_json.h"

namespace flotilla {
namespace {

using nlohmann::json;

constexpr std::string_view kHeaderKey = "group";
constexpr std::string_view kDigestKey = "sha256";
constexpr std::string_view kApproximateName = "approximate";
constexpr std::array kEnds = {EpisodeEnd::kDone, EpisodeEnd::kTurnLimit, EpisodeEnd::kTokenLimit, EpisodeEnd::kContext};
constexpr std::array kContexts = {SpanContext::kNew, SpanContext::kKept};
constexpr std::array kSplits = {Split::kTrain, Split::kHeldOut};

// The four tensors: all episodes one after the other.
struct Columns {
  std::vector<std::int64_t> ends;  // [episodes], one past the last token of each
  std::vector<float> logprobs;     // [tokens], as the two below
  std::vector<TokenId> tokens;
  std::vector<std::uint8_t> sources;
};

json header_of(const Group& group) {
  const GroupIdentity& identity = group.identity;
  json header = {{"format", kGroupFormat},
                 {"run", identity.run},
                 {"seed", identity.seed},
                 {"group", identity.group.value()},
                 {"operator", identity.operator_id.value()},
                 {"worker", identity.worker.value()},
                 {"unit", kEpisodeUnit},
                 {"counter", identity.counter},
                 {"attempt", identity.attempt},
                 {"split", split_name(identity.split)},
                 {"task", identity.task},
                 {"backend", identity.backend},
                 {"arithmetic", identity.arithmetic},
                 {"tokenizer", identity.tokenizer.to_hex()},
                 {"environment", identity.environment.to_hex()},
                 {"corpus", identity.corpus.to_hex()},
                 {"sampling",
                  {{"temperature", static_cast<double>(identity.sampling.temperature)},
                   {"top_k", identity.sampling.top_k},
                   {"top_p", static_cast<double>(identity.sampling.top_p)}}},
                 {"task_metadata", base64(as_bytes(identity.task_metadata))},
                 {"prompt_tokens", group.prompt_tokens}};
  if (identity.arithmetic == kApproximate) header["arithmetic"] = kApproximateName;

  std::map<Version, Sha256Digest> states;
  json& episodes = header["episodes"] = json::array();
  for (const Episode& episode : group.episodes) {
    json spans = json::array();
    for (const VersionSpan& span : episode.spans) {
      states.emplace(span.version, span.state);
      spans.push_back({span.begin, span.end, span.version.value(), span_context_name(span.context)});
    }
    episodes.push_back({{"end", episode_end_name(episode.end)},
                        {"reward", episode.reward},
                        {"metrics", episode.metrics},
                        {"turns", episode.turns},
                        {"spans", std::move(spans)}});
  }
  json& versions = header["versions"] = json::array();
  for (const auto& [version, state] : states) {
    versions.push_back({{"version", version.value()}, {"state", state.to_hex()}});
  }
  return header;
}

Columns columns_of(const Group& group) {
  Columns columns;
  for (const Episode& episode : group.episodes) {
    columns.tokens.insert(columns.tokens.end(), episode.tokens.begin(), episode.tokens.end());
    columns.logprobs.insert(columns.logprobs.end(), episode.logprobs.begin(), episode.logprobs.end());
    for (const TokenSource source : episode.sources) columns.sources.push_back(static_cast<std::uint8_t>(source));
    columns.ends.push_back(static_cast<std::int64_t>(columns.tokens.size()));
  }
  return columns;
}

// One object of the header; every error names the field.
class Fields {
 public:
  explicit Fields(const json& object) : object_(object) {}

  Result<const json*> find(std::string_view name, json::value_t type) const {
    const auto found = object_.is_object() ? object_.find(name) : object_.end();
    if (found == object_.end()) return data_loss(fmt::format("{} is missing", name));
    if (found->type() != type) return data_loss(fmt::format("{} is of another type", name));
    return &*found;
  }
  Result<std::string> text(std::string_view name) const {
    FLOTILLA_ASSIGN_OR_RETURN(const json* value, find(name, json::value_t::string));
    return value->get<std::string>();
  }
  template <typename T>
  Result<T> number(std::string_view name) const {
    FLOTILLA_ASSIGN_OR_RETURN(const json* value, find(name, json::value_t::number_unsigned));
    const auto number = value->get<std::uint64_t>();
    if (number > static_cast<std::uint64_t>(std::numeric_limits<T>::max())) {
      return data_loss(fmt::format("{} is {}, too large", name, number));
    }
    return static_cast<T>(number);
  }
  Result<double> real(std::string_view name) const {
    FLOTILLA_ASSIGN_OR_RETURN(const json* value, find(name, json::value_t::number_float));
    return value->get<double>();
  }
  Result<Sha256Digest> digest(std::string_view name) const {
    FLOTILLA_ASSIGN_OR_RETURN(const std::string hex_text, text(name));
    return Sha256Digest::from_hex(hex_text).with_context(name);
  }

 private:
  const json& object_;
};

template <typename Enum, std::size_t N, typename Name>
Result<Enum> enum_of(const std::array<Enum, N>& values, Name name_of, std::string_view name) {
  for (const Enum value : values) {
    if (name_of(value) == name) return value;
  }
  return data_loss(fmt::format("\"{}\" is not one of the known values", name));
}

Result<std::int32_t> small_number(const json& value) {
  if (!value.is_number_unsigned() || value.get<std::uint64_t>() > INT32_MAX) return data_loss("not a position");
  return value.get<std::int32_t>();
}

Result<SamplingParams> parse_sampling(const Fields& header) {
  FLOTILLA_ASSIGN_OR_RETURN(const json* object, header.find("sampling", json::value_t::object));
  const Fields fields(*object);
  SamplingParams sampling;
  FLOTILLA_ASSIGN_OR_RETURN(const double temperature, fields.real("temperature"));
  FLOTILLA_ASSIGN_OR_RETURN(sampling.top_k, fields.number<std::int32_t>("top_k"));
  FLOTILLA_ASSIGN_OR_RETURN(const double top_p, fields.real("top_p"));
  sampling.temperature = static_cast<float>(temperature);
  sampling.top_p = static_cast<float>(top_p);
  return sampling;
}

Result<GroupIdentity> parse_identity(const Fields& fields) {
  GroupIdentity identity;
  FLOTILLA_ASSIGN_OR_RETURN(identity.run, fields.text("run"));
  FLOTILLA_ASSIGN_OR_RETURN(identity.seed, fields.number<std::uint64_t>("seed"));
  FLOTILLA_ASSIGN_OR_RETURN(std::string group, fields.text("group"));
  FLOTILLA_ASSIGN_OR_RETURN(std::string operator_name, fields.text("operator"));
  FLOTILLA_ASSIGN_OR_RETURN(std::string worker, fields.text("worker"));
  identity.group = GroupId(std::move(group));
  identity.operator_id = OperatorId(std::move(operator_name));
  identity.worker = WorkerId(std::move(worker));
  FLOTILLA_ASSIGN_OR_RETURN(const std::string unit, fields.text("unit"));
  if (unit != kEpisodeUnit) return data_loss(fmt::format("unit is \"{}\", expected \"{}\"", unit, kEpisodeUnit));
  FLOTILLA_ASSIGN_OR_RETURN(identity.counter, fields.number<std::uint64_t>("counter"));
  FLOTILLA_ASSIGN_OR_RETURN(identity.attempt, fields.number<std::uint32_t>("attempt"));
  FLOTILLA_ASSIGN_OR_RETURN(const std::string split, fields.text("split"));
  FLOTILLA_ASSIGN_OR_RETURN(identity.split, enum_of(kSplits, split_name, split).with_context("split"));
  FLOTILLA_ASSIGN_OR_RETURN(identity.task, fields.number<std::uint64_t>("task"));
  FLOTILLA_ASSIGN_OR_RETURN(identity.backend, fields.text("backend"));
  if (const auto name = fields.text("arithmetic"); name.ok() && *name == kApproximateName) {
    identity.arithmetic = kApproximate;
  } else {
    FLOTILLA_ASSIGN_OR_RETURN(identity.arithmetic, fields.number<int>("arithmetic"));
  }
  FLOTILLA_ASSIGN_OR_RETURN(identity.tokenizer, fields.digest("tokenizer"));
  FLOTILLA_ASSIGN_OR_RETURN(identity.environment, fields.digest("environment"));
  FLOTILLA_ASSIGN_OR_RETURN(identity.corpus, fields.digest("corpus"));
  FLOTILLA_ASSIGN_OR_RETURN(identity.sampling, parse_sampling(fields));
  FLOTILLA_ASSIGN_OR_RETURN(const std::string metadata, fields.text("task_metadata"));
  FLOTILLA_ASSIGN_OR_RETURN(const Bytes opaque, from_base64(metadata).with_context("task_metadata"));
  identity.task_metadata = as_text(opaque);
  return identity;
}

Result<std::map<Version, Sha256Digest>> parse_versions(const Fields& header) {
  FLOTILLA_ASSIGN_OR_RETURN(const json* list, header.find("versions", json::value_t::array));
  std::map<Version, Sha256Digest> states;
  for (const json& entry : *list) {
    const Fields fields(entry);
    FLOTILLA_ASSIGN_OR_RETURN(const auto version, fields.number<std::uint64_t>("version"));
    FLOTILLA_ASSIGN_OR_RETURN(states[Version(version)], fields.digest("state"));
  }
  return states;
}

Result<VersionSpan> parse_span(const json& entry, const std::map<Version, Sha256Digest>& states) {
  if (!entry.is_array() || entry.size() != 4 || !entry[2].is_number_unsigned() || !entry[3].is_string()) {
    return data_loss("a span is [begin, end, version, context]");
  }
  VersionSpan span;
  FLOTILLA_ASSIGN_OR_RETURN(span.begin, small_number(entry[0]).with_context("begin"));
  FLOTILLA_ASSIGN_OR_RETURN(span.end, small_number(entry[1]).with_context("end"));
  span.version = Version(entry[2].get<std::uint64_t>());
  FLOTILLA_ASSIGN_OR_RETURN(span.context, enum_of(kContexts, span_context_name, entry[3].get<std::string>()));
  const auto state = states.find(span.version);
  if (state == states.end()) return data_loss(fmt::format("version {} has no state digest", span.version.value()));
  span.state = state->second;
  return span;
}

Result<Episode> parse_episode(const json& entry, const std::map<Version, Sha256Digest>& states) {
  const Fields fields(entry);
  Episode episode;
  FLOTILLA_ASSIGN_OR_RETURN(const std::string end, fields.text("end"));
  FLOTILLA_ASSIGN_OR_RETURN(episode.end, enum_of(kEnds, episode_end_name, end).with_context("end"));
  FLOTILLA_ASSIGN_OR_RETURN(episode.reward, fields.real("reward"));
  FLOTILLA_ASSIGN_OR_RETURN(const json* metrics, fields.find("metrics", json::value_t::object));
  for (const auto& [name, value] : metrics->items()) {
    FLOTILLA_ASSIGN_OR_RETURN(episode.metrics[name], Fields(*metrics).real(name).with_context("metrics"));
  }
  FLOTILLA_ASSIGN_OR_RETURN(const json* turns, fields.find("turns", json::value_t::array));
  for (const json& turn : *turns) {
    FLOTILLA_ASSIGN_OR_RETURN(episode.turns.emplace_back(), small_number(turn).with_context("turns"));
  }
  FLOTILLA_ASSIGN_OR_RETURN(const json* spans, fields.find("spans", json::value_t::array));
  for (const json& span : *spans) {
    FLOTILLA_ASSIGN_OR_RETURN(episode.spans.emplace_back(), parse_span(span, states).with_context("spans"));
  }
  return episode;
}

Result<Columns> read_columns(const SafetensorsFile& file, std::int64_t episodes) {
  if (file.tensors().size() != 4) return data_loss(fmt::format("{} tensors, expected 4", file.tensors().size()));
  FLOTILLA_ASSIGN_OR_RETURN(const TensorView ends, file.expect("ends", DType::kI64, {episodes}));
  Columns columns;
  columns.ends = ends.copy<std::int64_t>();
  const TensorShape shape = {columns.ends.empty() ? 0 : columns.ends.back()};
  FLOTILLA_ASSIGN_OR_RETURN(const TensorView logprobs, file.expect("logprobs", DType::kF32, shape));
  FLOTILLA_ASSIGN_OR_RETURN(const TensorView tokens, file.expect("tokens", DType::kI32, shape));
  FLOTILLA_ASSIGN_OR_RETURN(const TensorView sources, file.expect("sources", DType::kU8, shape));
  columns.logprobs = logprobs.copy<float>();
  columns.tokens = tokens.copy<TokenId>();
  columns.sources = sources.copy<std::uint8_t>();
  return columns;
}

Status fill_episodes(const Columns& columns, std::vector<Episode>& episodes) {
  std::int64_t begin = 0;
  for (std::size_t i = 0; i < episodes.size(); ++i) {
    const std::int64_t end = columns.ends[i];
    if (end < begin || end > columns.ends.back()) {
      return data_loss(fmt::format("episode {} ends at {}, outside [{}, {}]", i, end, begin, columns.ends.back()));
    }
    Episode& episode = episodes[i];
    episode.tokens.assign(columns.tokens.begin() + begin, columns.tokens.begin() + end);
    episode.logprobs.assign(columns.logprobs.begin() + begin, columns.logprobs.begin() + end);
    for (std::int64_t at = begin; at < end; ++at) episode.sources.push_back(TokenSource{columns.sources[at]});
    begin = end;
  }
  return ok_status();
}

// Of the header's text, then the data in the order in which it lies.
Sha256Digest digest_of(std::string_view header, std::span<const ByteSpan> data) {
  Sha256 hash;
  hash.update(as_bytes(header));
  for (const ByteSpan piece : data) hash.update(piece);
  return hash.finish();
}

Status check_digest(const SafetensorsFile& file, const std::string& header, const std::string& recorded) {
  std::vector<ByteSpan> data;
  for (const TensorView& tensor : file.tensors()) data.push_back(tensor.bytes);
  const std::string observed = digest_of(header, data).to_hex();
  if (observed != recorded) return data_loss(fmt::format("content has digest {}, recorded is {}", observed, recorded));
  return ok_status();
}

}  // namespace

std::string_view episode_end_name(EpisodeEnd end) {
  switch (end) {
    case EpisodeEnd::kDone: return "done";
    case EpisodeEnd::kTurnLimit: return "turn_limit";
    case EpisodeEnd::kTokenLimit: return "token_limit";
    case EpisodeEnd::kContext: return "context";
  }
  return "unknown";
}

Bytes write_group(const Group& group) {
  const Columns columns = columns_of(group);
  const auto episodes = static_cast<std::int64_t>(columns.ends.size());
  const auto tokens = static_cast<std::int64_t>(columns.tokens.size());
  const std::array<TensorToWrite, 4> tensors = {
      {{"ends", DType::kI64, {episodes}, as_bytes(std::span(columns.ends))},
       {"logprobs", DType::kF32, {tokens}, as_bytes(std::span(columns.logprobs))},
       {"tokens", DType::kI32, {tokens}, as_bytes(std::span(columns.tokens))},
       {"sources", DType::kU8, {tokens}, as_bytes(std::span(columns.sources))}}};
  const std::string header = header_of(group).dump(-1, ' ', false, json::error_handler_t::replace);
  std::array<ByteSpan, 4> data;
  std::transform(tensors.begin(), tensors.end(), data.begin(),
                 [](const TensorToWrite& tensor) { return tensor.bytes; });
  const SafetensorsMetadata metadata = {{std::string(kHeaderKey), header},
                                        {std::string(kDigestKey), digest_of(header, data).to_hex()}};
  return write_safetensors(tensors, metadata).value();
}

Result<Group> parse_group(ByteSpan bytes) {
  FLOTILLA_ASSIGN_OR_RETURN(const SafetensorsFile file, SafetensorsFile::parse(bytes));
  const auto header_text = file.metadata().find(std::string(kHeaderKey));
  const auto digest_text = file.metadata().find(std::string(kDigestKey));
  if (header_text == file.metadata().end()) return data_loss("no group header in the metadata");
  if (digest_text == file.metadata().end()) return data_loss("no digest in the metadata");
  FLOTILLA_ASSIGN_OR_RETURN(const json header, parse_strict_json(header_text->second).with_context("group header"));
  const Fields fields(header);
  FLOTILLA_ASSIGN_OR_RETURN(const int format, fields.number<int>("format"));
  if (format != kGroupFormat) {
    return failed_precondition(fmt::format("group format {}, this program reads {}: upgrade {}", format, kGroupFormat,
                                           format > kGroupFormat ? "it" : "the one that wrote the group"));
  }
  FLOTILLA_RETURN_IF_ERROR(check_digest(file, header_text->second, digest_text->second));

  Group group;
  FLOTILLA_ASSIGN_OR_RETURN(group.identity, parse_identity(fields));
  FLOTILLA_ASSIGN_OR_RETURN(group.prompt_tokens, fields.number<std::int32_t>("prompt_tokens"));
  FLOTILLA_ASSIGN_OR_RETURN(const auto states, parse_versions(fields));
  FLOTILLA_ASSIGN_OR_RETURN(const json* episodes, fields.find("episodes", json::value_t::array));
  for (const json& entry : *episodes) {
    const std::string context = fmt::format("episode {}", group.episodes.size());
    FLOTILLA_ASSIGN_OR_RETURN(Episode episode, parse_episode(entry, states).with_context(context));
    group.episodes.push_back(std::move(episode));
  }
  FLOTILLA_ASSIGN_OR_RETURN(const Columns columns,
                            read_columns(file, static_cast<std::int64_t>(group.episodes.size())));
  FLOTILLA_RETURN_IF_ERROR(fill_episodes(columns, group.episodes));
  FLOTILLA_RETURN_IF_ERROR(check_group(group));
  const Bytes canonical = write_group(group);
  if (!std::ranges::equal(canonical, bytes)) return data_loss("not the one encoding of its content");
  return group;
}

}  // namespace flotilla
