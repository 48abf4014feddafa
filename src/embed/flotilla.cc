// The C interface of embed/include/flotilla.h over the engine and the model.
#include "embed/include/flotilla.h"
#include "base/thread_pool.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include <fmt/format.h>

#include "engine/engine.h"
#include "model/chat.h"
#include "model/grid.h"
#include "model/tokenizer.h"
#include "model/weights.h"

static_assert(std::is_same_v<flotilla_token, flotilla::TokenId>);

struct flotilla_model {
  flotilla::ModelDescription description;
  std::shared_ptr<const flotilla::Tokenizer> tokenizer;
  mutable std::mutex mutex;                            // of weights
  std::shared_ptr<const flotilla::GridState> weights;  // null once released
};

// Sequences hold their last token back until something follows it, so that every question about "what comes next" is
// one forward pass over what is new.
struct flotilla_engine {
  struct Sequence {
    flotilla::SequenceId id;
    std::optional<flotilla::TokenId> last;  // not in the engine yet; none: the sequence is empty
  };
  std::unique_ptr<flotilla::Engine> engine;
  std::map<flotilla_sequence, Sequence> sequences;
  flotilla_sequence next = 1;
  std::atomic_flag busy;
};

namespace flotilla {
namespace {

thread_local std::string error_message;

flotilla_status status_number(StatusCode code) {
  switch (code) {
    case StatusCode::kOk: return FLOTILLA_OK;
    case StatusCode::kInvalidArgument: return FLOTILLA_INVALID_ARGUMENT;
    case StatusCode::kNotFound: return FLOTILLA_NOT_FOUND;
    case StatusCode::kFailedPrecondition: return FLOTILLA_FAILED_PRECONDITION;
    case StatusCode::kDataLoss: return FLOTILLA_DATA_LOSS;
    case StatusCode::kResourceExhausted: return FLOTILLA_RESOURCE_EXHAUSTED;
    case StatusCode::kPermissionDenied: return FLOTILLA_PERMISSION_DENIED;
    case StatusCode::kUnavailable: return FLOTILLA_UNAVAILABLE;
    default: return FLOTILLA_INTERNAL;
  }
}

// Runs what a function of the interface does; no exception gets past it.
template <typename Body>
flotilla_status guarded(const Body& body) noexcept {
  try {
    Status status = body();
    if (status.ok()) return FLOTILLA_OK;
    error_message = status.message();
    return status_number(status.code());
  } catch (const std::bad_alloc&) {
    error_message = "out of memory";  // short enough to need none
    return FLOTILLA_RESOURCE_EXHAUSTED;
  } catch (...) {
    error_message = "an exception";
    return FLOTILLA_INTERNAL;
  }
}

Status need(const void* pointer, std::string_view name) {
  return pointer != nullptr ? ok_status() : invalid_argument(fmt::format("{} is null", name));
}

// `pointer` may be null where there are no elements.
template <typename T>
Result<std::span<const T>> list(const T* pointer, std::size_t count, std::string_view name) {
  if (count > 0) FLOTILLA_RETURN_IF_ERROR(need(pointer, name));
  if (count > PTRDIFF_MAX / sizeof(T)) return invalid_argument(fmt::format("{} has {} elements", name, count));
  return std::span<const T>(pointer, count);
}

template <typename T>
Status check_struct(const T* value, std::string_view name) {
  FLOTILLA_RETURN_IF_ERROR(need(value, name));
  if (value->struct_size == sizeof(T)) return ok_status();
  return invalid_argument(fmt::format("{} has a struct_size of {}, expected {}: start from its _INIT", name,
                                      value->struct_size, sizeof(T)));
}

template <typename Elements, typename T>
Status give(const Elements& from, T* to, std::size_t capacity, std::size_t* count) {
  *count = from.size();
  if (capacity == 0) return ok_status();
  FLOTILLA_RETURN_IF_ERROR(need(to, "the buffer"));
  if (capacity < from.size()) {
    return resource_exhausted(fmt::format("a buffer for {} elements, {} are needed", capacity, from.size()));
  }
  std::copy(from.begin(), from.end(), to);
  return ok_status();
}

Result<EngineOptions> engine_options(const flotilla_engine_options* options) {
  constexpr std::int64_t kRoomMax = std::int64_t{1} << 34;
  FLOTILLA_RETURN_IF_ERROR(check_struct(options, "options"));
  if (options->room < 1 || options->room > kRoomMax) {
    return invalid_argument(fmt::format("room = {}, expected 1 to {} tokens", options->room, kRoomMax));
  }
  if (options->threads < 0) return invalid_argument(fmt::format("threads = {}, expected at least 0", options->threads));
  EngineOptions result;
  result.threads = options->threads > 0 ? options->threads : core_count();
  result.kv_blocks = (options->room + kBlockTokens - 1) / kBlockTokens;
  return result;
}

Result<Readout> readout_of(const flotilla_sampling* sampling) {
  Readout readout;
  if (sampling == nullptr) return readout;
  FLOTILLA_RETURN_IF_ERROR(check_struct(sampling, "sampling"));
  readout.sampling = {sampling->temperature, sampling->top_k, sampling->top_p};
  readout.key.seed = sampling->seed;
  readout.key.group = sampling->stream;
  return readout;
}

// The engine during one call.
class Session {
 public:
  explicit Session(flotilla_engine& state) : state_(state) {}

  Engine& engine() { return *state_.engine; }

  Result<flotilla_engine::Sequence*> find(flotilla_sequence sequence) {
    const auto found = state_.sequences.find(sequence);
    if (found == state_.sequences.end()) return not_found(fmt::format("sequence {} is not open", sequence));
    return &found->second;
  }

  flotilla_sequence keep(flotilla_engine::Sequence sequence) {
    state_.sequences.emplace(state_.next, sequence);
    return state_.next++;
  }

  Status close(flotilla_sequence sequence) {
    FLOTILLA_ASSIGN_OR_RETURN(const auto* found, find(sequence));
    engine().close(found->id);
    state_.sequences.erase(sequence);
    return ok_status();
  }

  std::int32_t length(const flotilla_engine::Sequence& sequence) {
    return engine().length(sequence.id) + (sequence.last ? 1 : 0);
  }

  Status append(flotilla_engine::Sequence& sequence, std::span<const TokenId> tokens) {
    if (tokens.empty()) return ok_status();
    FLOTILLA_RETURN_IF_ERROR(check_room(sequence, tokens));
    const std::vector<TokenId> chunk_tokens = shifted(sequence, tokens);
    const Chunk chunk{sequence.id, chunk_tokens, {}};
    if (!chunk_tokens.empty()) FLOTILLA_RETURN_IF_ERROR(engine().forward({&chunk, 1}).status());
    sequence.last = tokens.back();
    return ok_status();
  }

  // One token of each sequence, drawn as readouts[i] says.
  Status sample(std::span<flotilla_engine::Sequence* const> sequences, std::span<Readout> readouts,
                flotilla_sample_result* results) {
    std::vector<Chunk> chunks;
    for (std::size_t i = 0; i < sequences.size(); ++i) {
      const flotilla_engine::Sequence& sequence = *sequences[i];
      if (!sequence.last) return failed_precondition("an empty sequence: there is nothing that a token could follow");
      const std::int32_t position = length(sequence);
      if (position >= engine().description().context) return invalid_argument(past_context(position, 1));
      readouts[i].key.position = static_cast<std::uint32_t>(position);
      chunks.push_back({sequence.id, {&*sequence.last, 1}, {&readouts[i], 1}});
    }
    FLOTILLA_ASSIGN_OR_RETURN(const auto drawn, engine().forward(chunks));
    for (std::size_t i = 0; i < sequences.size(); ++i) {
      sequences[i]->last = drawn[i].token;
      results[i] = {drawn[i].token, drawn[i].logprob};
    }
    return ok_status();
  }

  Status score(flotilla_engine::Sequence& sequence, std::span<const TokenId> tokens, const Readout& readout,
               float* logprobs) {
    if (!sequence.last) return failed_precondition("an empty sequence: there is nothing that the first token follows");
    if (tokens.empty()) return ok_status();
    FLOTILLA_RETURN_IF_ERROR(check_room(sequence, tokens));
    const std::vector<TokenId> chunk_tokens = shifted(sequence, tokens);
    std::vector<Readout> readouts(tokens.size(), readout);
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      readouts[i].offset = static_cast<std::int32_t>(i);
      readouts[i].target = tokens[i];
    }
    const Chunk chunk{sequence.id, chunk_tokens, readouts};
    FLOTILLA_ASSIGN_OR_RETURN(const auto results, engine().forward({&chunk, 1}));
    for (std::size_t i = 0; i < tokens.size(); ++i) logprobs[i] = results[i].target_logprob;
    sequence.last = tokens.back();
    return ok_status();
  }

 private:
  std::string past_context(std::int32_t length, std::size_t more) {
    return fmt::format("{} tokens after {} pass the model's context of {}", more, length,
                       engine().description().context);
  }

  Status check_room(const flotilla_engine::Sequence& sequence, std::span<const TokenId> tokens) {
    const std::int32_t context = engine().description().context;
    const std::int32_t present = length(sequence);
    if (tokens.size() > static_cast<std::size_t>(context - present)) {
      return invalid_argument(past_context(present, tokens.size()));
    }
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      if (tokens[i] < 0 || tokens[i] >= engine().description().vocabulary) {
        return invalid_argument(fmt::format("tokens[{}] = {} lies outside the vocabulary of {}", i, tokens[i],
                                            engine().description().vocabulary));
      }
    }
    return ok_status();
  }

  // What the engine is to compute when `tokens` follow: the token held back, and all of these but their last.
  static std::vector<TokenId> shifted(const flotilla_engine::Sequence& sequence, std::span<const TokenId> tokens) {
    std::vector<TokenId> result;
    if (sequence.last) result.push_back(*sequence.last);
    result.insert(result.end(), tokens.begin(), tokens.end() - 1);
    return result;
  }

  flotilla_engine& state_;
};

// Runs `body` with the engine to itself.
template <typename Body>
flotilla_status with_engine(flotilla_engine* engine, const Body& body) noexcept {
  return guarded([&]() -> Status {
    FLOTILLA_RETURN_IF_ERROR(need(engine, "engine"));
    if (engine->busy.test_and_set(std::memory_order_acquire)) {
      return failed_precondition("the engine is in another call; it does one at a time");
    }
    struct Release {
      std::atomic_flag& busy;
      ~Release() { busy.clear(std::memory_order_release); }
    } release{engine->busy};
    Session session(*engine);
    return body(session);
  });
}

Status generate(Session& session, flotilla_engine::Sequence& sequence, Readout readout, std::int32_t max_tokens,
                std::span<const TokenId> end_tokens, flotilla_on_token on_token, void* user, flotilla_end& end) {
  if (!sequence.last) return failed_precondition("an empty sequence: there is nothing that a token could follow");
  end = FLOTILLA_END_LIMIT;
  for (std::int32_t i = 0; i < max_tokens; ++i) {
    if (session.length(sequence) >= session.engine().description().context) {
      end = FLOTILLA_END_CONTEXT;
      break;
    }
    flotilla_engine::Sequence* const one = &sequence;
    flotilla_sample_result sampled{};
    FLOTILLA_RETURN_IF_ERROR(session.sample({&one, 1}, {&readout, 1}, &sampled));
    const bool last = std::find(end_tokens.begin(), end_tokens.end(), sampled.token) != end_tokens.end();
    if (last) end = FLOTILLA_END_TOKEN;
    if (on_token != nullptr && on_token(&sampled, user) != 0 && !last) {
      end = FLOTILLA_END_CALLBACK;
      break;
    }
    if (last) break;
  }
  return ok_status();
}

}  // namespace
}  // namespace flotilla

using namespace flotilla;

int flotilla_abi_version(void) { return FLOTILLA_ABI_VERSION; }
const char* flotilla_version(void) { return FLOTILLA_VERSION; }
int flotilla_arithmetic(void) { return kArithmetic; }

const char* flotilla_error_message(void) { return error_message.c_str(); }

const char* flotilla_status_name(flotilla_status status) {
  switch (status) {
    case FLOTILLA_OK: return "ok";
    case FLOTILLA_INVALID_ARGUMENT: return "invalid_argument";
    case FLOTILLA_NOT_FOUND: return "not_found";
    case FLOTILLA_FAILED_PRECONDITION: return "failed_precondition";
    case FLOTILLA_DATA_LOSS: return "data_loss";
    case FLOTILLA_RESOURCE_EXHAUSTED: return "resource_exhausted";
    case FLOTILLA_PERMISSION_DENIED: return "permission_denied";
    case FLOTILLA_UNAVAILABLE: return "unavailable";
    case FLOTILLA_INTERNAL: return "internal";
  }
  return "unknown";
}

flotilla_status flotilla_model_load(const char* path, flotilla_model** model) {
  return guarded([&]() -> Status {
    FLOTILLA_RETURN_IF_ERROR(need(path, "path"));
    FLOTILLA_RETURN_IF_ERROR(need(model, "model"));
    FLOTILLA_ASSIGN_OR_RETURN(Model loaded, load_model(path));
    auto made = std::make_unique<flotilla_model>();
    FLOTILLA_ASSIGN_OR_RETURN(GridState grid, make_grid(loaded.weights));
    made->description = std::move(loaded.weights.description);
    made->tokenizer = std::move(loaded.tokenizer);
    made->weights = std::make_shared<const GridState>(std::move(grid));
    *model = made.release();
    return ok_status();
  });
}

void flotilla_model_free(flotilla_model* model) { delete model; }

flotilla_status flotilla_model_release_weights(flotilla_model* model) {
  return guarded([&]() -> Status {
    FLOTILLA_RETURN_IF_ERROR(need(model, "model"));
    const std::lock_guard lock(model->mutex);
    model->weights.reset();
    return ok_status();
  });
}

flotilla_status flotilla_model_get_info(const flotilla_model* model, flotilla_model_info* info) {
  return guarded([&]() -> Status {
    FLOTILLA_RETURN_IF_ERROR(need(model, "model"));
    FLOTILLA_RETURN_IF_ERROR(check_struct(info, "info"));
    info->parameters = model->description.parameters();
    info->context = model->description.context;
    info->vocabulary = model->description.vocabulary;
    info->tokens = model->tokenizer->vocabulary();
    info->end = model->tokenizer->spec().eos;
    const auto turn = end_of_turn(*model->tokenizer);
    info->end_of_turn = turn.ok() ? *turn : -1;
    return ok_status();
  });
}

flotilla_status flotilla_encode(const flotilla_model* model, const char* text, size_t size, int parse_special,
                                flotilla_token* tokens, size_t capacity, size_t* count) {
  return guarded([&]() -> Status {
    FLOTILLA_RETURN_IF_ERROR(need(model, "model"));
    FLOTILLA_RETURN_IF_ERROR(need(count, "count"));
    FLOTILLA_ASSIGN_OR_RETURN(const auto bytes, list(text, size, "text"));
    return give(model->tokenizer->encode({bytes.data(), bytes.size()}, parse_special != 0), tokens, capacity, count);
  });
}

flotilla_status flotilla_decode(const flotilla_model* model, const flotilla_token* tokens, size_t count,
                                int keep_special, char* text, size_t capacity, size_t* size) {
  return guarded([&]() -> Status {
    FLOTILLA_RETURN_IF_ERROR(need(model, "model"));
    FLOTILLA_RETURN_IF_ERROR(need(size, "size"));
    FLOTILLA_ASSIGN_OR_RETURN(const auto ids, list(tokens, count, "tokens"));
    for (std::size_t i = 0; i < ids.size(); ++i) {
      if (ids[i] < 0 || ids[i] >= model->description.vocabulary) {
        return invalid_argument(
            fmt::format("tokens[{}] = {} lies outside the vocabulary of {}", i, ids[i], model->description.vocabulary));
      }
    }
    return give(model->tokenizer->decode(ids, keep_special != 0), text, capacity, size);
  });
}

flotilla_status flotilla_encode_chat(const flotilla_model* model, const flotilla_message* messages,
                                     size_t message_count, int open_assistant_turn, flotilla_token* tokens,
                                     size_t capacity, size_t* count) {
  return guarded([&]() -> Status {
    FLOTILLA_RETURN_IF_ERROR(need(model, "model"));
    FLOTILLA_RETURN_IF_ERROR(need(count, "count"));
    FLOTILLA_ASSIGN_OR_RETURN(const auto given, list(messages, message_count, "messages"));
    std::vector<ChatMessage> chat;
    for (std::size_t i = 0; i < given.size(); ++i) {
      FLOTILLA_RETURN_IF_ERROR(need(given[i].role, fmt::format("messages[{}].role", i)));
      FLOTILLA_RETURN_IF_ERROR(need(given[i].content, fmt::format("messages[{}].content", i)));
      chat.push_back({given[i].role, given[i].content});
    }
    FLOTILLA_ASSIGN_OR_RETURN(const auto ids, encode_chat(*model->tokenizer, chat, open_assistant_turn != 0));
    return give(ids, tokens, capacity, count);
  });
}

flotilla_status flotilla_memory_needed(const flotilla_model* model, const flotilla_engine_options* options,
                                       int64_t* bytes) {
  return guarded([&]() -> Status {
    FLOTILLA_RETURN_IF_ERROR(need(model, "model"));
    FLOTILLA_RETURN_IF_ERROR(need(bytes, "bytes"));
    FLOTILLA_ASSIGN_OR_RETURN(const EngineOptions made, engine_options(options));
    *bytes = Engine::memory_bytes(model->description, made, options->room);
    return ok_status();
  });
}

flotilla_status flotilla_engine_create(const flotilla_model* model, const flotilla_engine_options* options,
                                       flotilla_engine** engine) {
  return guarded([&]() -> Status {
    FLOTILLA_RETURN_IF_ERROR(need(model, "model"));
    FLOTILLA_RETURN_IF_ERROR(need(engine, "engine"));
    FLOTILLA_ASSIGN_OR_RETURN(const EngineOptions made_options, engine_options(options));
    const auto weights = [&] {
      const std::lock_guard lock(model->mutex);
      return model->weights;
    }();
    if (weights == nullptr) return failed_precondition("the model's weights were released");
    auto made = std::make_unique<flotilla_engine>();
    FLOTILLA_ASSIGN_OR_RETURN(made->engine, Engine::create(model->description, made_options));
    FLOTILLA_RETURN_IF_ERROR(made->engine->load(*weights));
    *engine = made.release();
    return ok_status();
  });
}

flotilla_status flotilla_engine_free(flotilla_engine* engine) {
  if (engine == nullptr) return FLOTILLA_OK;
  // No call is on its way, or this one fails; one that begins later uses a pointer that was freed.
  const flotilla_status status = with_engine(engine, [](Session&) { return ok_status(); });
  if (status == FLOTILLA_OK) delete engine;
  return status;
}

flotilla_status flotilla_get_usage(flotilla_engine* engine, flotilla_usage* usage) {
  return with_engine(engine, [&](Session& session) -> Status {
    FLOTILLA_RETURN_IF_ERROR(check_struct(usage, "usage"));
    const EngineUsage now = session.engine().usage();
    usage->room = now.blocks_total * kBlockTokens;
    usage->room_used = now.blocks_used * kBlockTokens;
    usage->computed = now.tokens_computed;
    usage->sequences = now.sequences;
    return ok_status();
  });
}

flotilla_status flotilla_open(flotilla_engine* engine, flotilla_sequence* sequence) {
  return with_engine(engine, [&](Session& session) -> Status {
    FLOTILLA_RETURN_IF_ERROR(need(sequence, "sequence"));
    FLOTILLA_ASSIGN_OR_RETURN(const SequenceId id, session.engine().open());
    *sequence = session.keep({id, std::nullopt});
    return ok_status();
  });
}

flotilla_status flotilla_fork(flotilla_engine* engine, flotilla_sequence source, flotilla_sequence* sequence) {
  return with_engine(engine, [&](Session& session) -> Status {
    FLOTILLA_RETURN_IF_ERROR(need(sequence, "sequence"));
    FLOTILLA_ASSIGN_OR_RETURN(const auto* from, session.find(source));
    FLOTILLA_ASSIGN_OR_RETURN(const SequenceId id, session.engine().fork(from->id));
    *sequence = session.keep({id, from->last});
    return ok_status();
  });
}

flotilla_status flotilla_close(flotilla_engine* engine, flotilla_sequence sequence) {
  return with_engine(engine, [&](Session& session) { return session.close(sequence); });
}

flotilla_status flotilla_length(flotilla_engine* engine, flotilla_sequence sequence, int32_t* length) {
  return with_engine(engine, [&](Session& session) -> Status {
    FLOTILLA_RETURN_IF_ERROR(need(length, "length"));
    FLOTILLA_ASSIGN_OR_RETURN(const auto* found, session.find(sequence));
    *length = session.length(*found);
    return ok_status();
  });
}

flotilla_status flotilla_append(flotilla_engine* engine, flotilla_sequence sequence, const flotilla_token* tokens,
                                size_t count) {
  return with_engine(engine, [&](Session& session) -> Status {
    FLOTILLA_ASSIGN_OR_RETURN(auto* found, session.find(sequence));
    FLOTILLA_ASSIGN_OR_RETURN(const auto ids, list(tokens, count, "tokens"));
    return session.append(*found, ids);
  });
}

flotilla_status flotilla_sample(flotilla_engine* engine, const flotilla_sequence* sequences,
                                const flotilla_sampling* samplings, size_t count, flotilla_sample_result* results) {
  return with_engine(engine, [&](Session& session) -> Status {
    FLOTILLA_ASSIGN_OR_RETURN(const auto numbers, list(sequences, count, "sequences"));
    FLOTILLA_ASSIGN_OR_RETURN(const auto wanted, list(samplings, count, "samplings"));
    if (count > 0) FLOTILLA_RETURN_IF_ERROR(need(results, "results"));
    std::vector<flotilla_engine::Sequence*> found;
    std::vector<Readout> readouts;
    std::set<flotilla_sequence> seen;
    for (std::size_t i = 0; i < count; ++i) {
      if (!seen.insert(numbers[i]).second) {
        return invalid_argument(fmt::format("sequence {} is in the list twice", numbers[i]));
      }
      FLOTILLA_ASSIGN_OR_RETURN(auto* sequence, session.find(numbers[i]));
      found.push_back(sequence);
      FLOTILLA_ASSIGN_OR_RETURN(const Readout readout, readout_of(&wanted[i]));
      readouts.push_back(readout);
    }
    return session.sample(found, readouts, results);
  });
}

flotilla_status flotilla_generate(flotilla_engine* engine, flotilla_sequence sequence,
                                  const flotilla_sampling* sampling, int32_t max_tokens,
                                  const flotilla_token* end_tokens, size_t end_token_count, flotilla_on_token on_token,
                                  void* user, flotilla_end* end) {
  return with_engine(engine, [&](Session& session) -> Status {
    FLOTILLA_RETURN_IF_ERROR(need(sampling, "sampling"));
    FLOTILLA_ASSIGN_OR_RETURN(auto* found, session.find(sequence));
    FLOTILLA_ASSIGN_OR_RETURN(const Readout readout, readout_of(sampling));
    FLOTILLA_ASSIGN_OR_RETURN(const auto ends, list(end_tokens, end_token_count, "end_tokens"));
    if (max_tokens < 0) return invalid_argument(fmt::format("max_tokens = {}, expected at least 0", max_tokens));
    flotilla_end reached = FLOTILLA_END_LIMIT;
    FLOTILLA_RETURN_IF_ERROR(generate(session, *found, readout, max_tokens, ends, on_token, user, reached));
    if (end != nullptr) *end = reached;
    return ok_status();
  });
}

flotilla_status flotilla_score(flotilla_engine* engine, flotilla_sequence sequence, const flotilla_token* tokens,
                               size_t count, const flotilla_sampling* sampling, float* logprobs) {
  return with_engine(engine, [&](Session& session) -> Status {
    FLOTILLA_ASSIGN_OR_RETURN(auto* found, session.find(sequence));
    FLOTILLA_ASSIGN_OR_RETURN(const auto ids, list(tokens, count, "tokens"));
    FLOTILLA_ASSIGN_OR_RETURN(const Readout readout, readout_of(sampling));
    if (count > 0) FLOTILLA_RETURN_IF_ERROR(need(logprobs, "logprobs"));
    return session.score(*found, ids, readout, logprobs);
  });
}
