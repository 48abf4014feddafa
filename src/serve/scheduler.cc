#include "serve/scheduler.h"

#include <algorithm>
#include <iterator>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include "engine/sampler.h"
#include "rollout/row_share.h"
#include "serve/text_stream.h"

namespace flotilla {
namespace {

std::int64_t blocks_of(std::size_t tokens) {
  return (static_cast<std::int64_t>(tokens) + kBlockTokens - 1) / kBlockTokens;
}

}  // namespace

struct Scheduler::Choice {
  Request* request = nullptr;
  std::int32_t index = 0;
  std::size_t prompt = 0;
  std::vector<TokenId> tokens = {};  // the prompt and what was sampled
  std::int32_t generated = 0;
  std::optional<SequenceId> sequence = {};
  TextStream text;

  // Age: who comes first keeps its KV.
  std::pair<RequestId, std::int32_t> order() const;
};

struct Scheduler::Request {
  RequestId id;
  GenerationRequest ask;
  std::optional<std::chrono::nanoseconds> deadline = {};
  bool begun = false;
  GenerationUsage usage = {};
  std::int64_t unfinished = 0;
  std::vector<std::unique_ptr<Choice>> choices = {};
  // Of each prompt: true while its first choice computes all but the last token for its other choices, or for scores.
  std::vector<bool> prompt_pending = {};
  std::vector<std::vector<ScoredToken>> scores = {};  // of each prompt, where asked for
};

std::pair<RequestId, std::int32_t> Scheduler::Choice::order() const { return {request->id, index}; }

Scheduler::Scheduler(Engine& engine, const Tokenizer& tokenizer, SchedulerLimits limits)
    : engine_(engine), tokenizer_(tokenizer), limits_(limits) {
  FLOTILLA_CHECK(limits.sequences >= 1 && limits.queue >= 1 && limits.rows_per_call >= 1);
}

Scheduler::~Scheduler() {
  for (Choice* choice : active_) engine_.close(*choice->sequence);
}

std::int32_t Scheduler::context() const {
  // The last token of an answer is never appended.
  const std::int64_t pool = engine_.usage().blocks_total * kBlockTokens + 1;
  return static_cast<std::int32_t>(std::min<std::int64_t>(engine_.description().context, pool));
}

Status Scheduler::submit(RequestId id, GenerationRequest request, std::chrono::nanoseconds now) {
  FLOTILLA_CHECK(!requests_.contains(id));
  if (request.prompts.empty()) return invalid_argument("no prompt");
  if (request.choices < 1) return invalid_argument(fmt::format("{} choices", request.choices));
  if (request.max_tokens < 0) return invalid_argument(fmt::format("{} tokens to generate", request.max_tokens));
  if (request.top < 0) return invalid_argument(fmt::format("{} most likely tokens", request.top));
  FLOTILLA_RETURN_IF_ERROR(check_sampling(request.sampling));
  for (const std::vector<TokenId>& prompt : request.prompts) {
    if (prompt.empty()) return invalid_argument("a prompt is empty");
    for (const TokenId token : prompt) {
      if (token < 0 || token >= engine_.description().vocabulary) {
        return invalid_argument(
            fmt::format("token {} lies outside the vocabulary of {}", token, engine_.description().vocabulary));
      }
    }
    if (std::ssize(prompt) + request.max_tokens > context()) {
      return invalid_argument(fmt::format("a prompt of {} tokens and {} to generate pass the {} that can be served",
                                          prompt.size(), request.max_tokens, context()));
    }
  }
  if (std::ranges::any_of(request.stop_strings, &std::string::empty)) return invalid_argument("a stop string is empty");
  if (counts_.queued >= limits_.queue) {
    return resource_exhausted(fmt::format("{} requests are waiting already; try again later", counts_.queued));
  }

  auto owned = std::make_unique<Request>(Request{.id = id, .ask = std::move(request)});
  const GenerationRequest& ask = owned->ask;
  if (ask.timeout) owned->deadline = now + *ask.timeout;
  const bool prompt_first = ask.choices > 1 || ask.max_tokens == 0 || ask.score_prompt;
  for (std::size_t prompt = 0; prompt < ask.prompts.size(); ++prompt) {
    for (std::int32_t c = 0; c < ask.choices; ++c) {
      owned->choices.push_back(
          std::make_unique<Choice>(Choice{.request = owned.get(),
                                          .index = static_cast<std::int32_t>(prompt) * ask.choices + c,
                                          .prompt = prompt,
                                          .tokens = ask.prompts[prompt],
                                          .text = {tokenizer_, ask.stop_strings}}));
      if (c == 0) pending_.push_back(owned->choices.back().get());
    }
    owned->prompt_pending.push_back(prompt_first);
    owned->scores.emplace_back();
    if (ask.score_prompt) {
      for (const TokenId token : ask.prompts[prompt]) owned->scores.back().push_back({.token = token});
    }
    owned->usage.prompt_tokens += std::ssize(ask.prompts[prompt]);
  }
  owned->unfinished = std::ssize(owned->choices);
  counts_.prompt_tokens += owned->usage.prompt_tokens;
  ++counts_.queued;
  requests_.emplace(id, std::move(owned));
  return ok_status();
}

void Scheduler::end(RequestId id, Status why) {
  const auto found = requests_.find(id);
  if (found == requests_.end()) return;
  Request& request = *found->second;
  for (const auto& choice : request.choices) close(*choice);
  std::erase_if(pending_, [&](const Choice* choice) { return choice->request == &request; });
  --(request.begun ? counts_.running : counts_.queued);
  events_.push_back({.request = id, .end = std::move(why), .usage = request.usage});
  requests_.erase(found);
}

void Scheduler::end_all(const Status& why) {
  while (!requests_.empty()) end(requests_.begin()->first, why);
}

std::vector<GenerationEvent> Scheduler::take_events() { return std::exchange(events_, {}); }

SchedulerCounts Scheduler::counts() const {
  SchedulerCounts counts = counts_;
  counts.active_sequences = std::ssize(active_);
  return counts;
}

bool Scheduler::prompt_pending(const Choice& choice) const { return choice.request->prompt_pending[choice.prompt]; }

// Tokens that the choice can append now.
std::int32_t Scheduler::waiting(const Choice& choice) const {
  const auto size = static_cast<std::int32_t>(choice.tokens.size()) - (prompt_pending(choice) ? 1 : 0);
  return size - engine_.length(*choice.sequence);
}

// Beside what the active sequences need now, and one block more for each of them.
bool Scheduler::fits(std::int64_t blocks) const {
  if (active_.empty()) return true;
  const EngineUsage usage = engine_.usage();
  std::int64_t free = usage.blocks_total - usage.blocks_used - std::ssize(active_);
  for (const Choice* choice : active_) free -= engine_.blocks_needed(*choice->sequence, waiting(*choice));
  return blocks <= free;
}

void Scheduler::admit() {
  while (!pending_.empty() && std::ssize(active_) < limits_.sequences &&
         fits(blocks_of(pending_.front()->tokens.size()))) {
    Choice& choice = *pending_.front();
    auto sequence = engine_.open();
    if (!sequence.ok()) return end(choice.request->id, std::move(sequence).status());
    pending_.pop_front();
    choice.sequence = *sequence;
    active_.push_back(&choice);
    if (!choice.request->begun) {
      choice.request->begun = true;
      --counts_.queued;
      ++counts_.running;
    }
  }
}

void Scheduler::step(std::chrono::nanoseconds now) {
  std::vector<RequestId> late;
  for (const auto& [id, request] : requests_) {
    if (request->deadline && *request->deadline <= now) late.push_back(id);
  }
  for (const RequestId id : late) end(id, deadline_exceeded("the request's time limit has passed"));
  admit();
  // A prompt of one token has nothing to compute for its other choices.
  for (Choice* choice : std::vector(active_)) {
    if (prompt_pending(*choice) && waiting(*choice) == 0) prompt_done(*choice);
  }
  if (!active_.empty()) compute(std::vector(active_));
}

// The other choices take over what the first one has computed.
void Scheduler::prompt_done(Choice& leader) {
  Request& request = *leader.request;
  const std::int32_t begin = leader.index, end = leader.index + request.ask.choices;
  request.prompt_pending[leader.prompt] = false;
  if (request.ask.score_prompt) {
    for (std::int32_t c = begin; c < end; ++c) {
      events_.push_back({.request = request.id, .choice = c, .prompt = request.scores[leader.prompt]});
    }
  }
  if (request.ask.max_tokens == 0) {
    // The last of them may end the request.
    for (std::int32_t c = begin; c < end; ++c) {
      finish(*request.choices[static_cast<std::size_t>(c)], {.choice = c, .finish = FinishReason::kLength});
    }
    return;
  }
  std::vector<Choice*> rest;
  for (std::int32_t c = begin + 1; c < end; ++c) {
    Choice& choice = *request.choices[static_cast<std::size_t>(c)];
    if (std::ssize(active_) < limits_.sequences && fits(1)) {
      if (const auto sequence = engine_.fork(*leader.sequence); sequence.ok()) {
        choice.sequence = *sequence;
        active_.push_back(&choice);
        continue;
      }
    }
    rest.push_back(&choice);
  }
  pending_.insert(pending_.begin(), rest.begin(), rest.end());
}

void Scheduler::compute(const std::vector<Choice*>& choices) {
  std::vector<std::int32_t> waiting_tokens;
  for (const Choice* choice : choices) waiting_tokens.push_back(waiting(*choice));
  const RowShare share = share_rows(waiting_tokens, limits_.rows_per_call, first_row_);
  first_row_ = share.next;

  std::vector<Chunk> chunks;
  std::vector<Choice*> computed;
  std::vector<std::vector<Readout>> readouts(choices.size());  // chunks point into it
  for (std::size_t i = 0; i < choices.size(); ++i) {
    const std::int32_t rows = share.rows[i];
    if (rows == 0) continue;
    const Choice& choice = *choices[i];
    const GenerationRequest& ask = choice.request->ask;
    const std::int32_t begin = engine_.length(*choice.sequence);
    if (prompt_pending(choice)) {
      for (std::int32_t row = 0; ask.score_prompt && row < rows; ++row) {
        readouts[i].push_back({.offset = row,
                               .sampling = {.temperature = 0},
                               .key = {},
                               .target = choice.tokens[static_cast<std::size_t>(begin + row + 1)],
                               .top = ask.top});
      }
    } else if (rows == waiting_tokens[i]) {
      readouts[i].push_back({.offset = rows - 1,
                             .sampling = ask.sampling,
                             .key = {.seed = ask.seed,
                                     .group = 0,
                                     .episode = static_cast<std::uint32_t>(choice.index % ask.choices),
                                     .position = static_cast<std::uint32_t>(begin + rows)},
                             .target = std::nullopt,
                             .top = ask.top});
    }
    chunks.push_back({*choice.sequence, std::span(choice.tokens).subspan(begin, rows), readouts[i]});
    computed.push_back(choices[i]);
  }

  auto results = engine_.forward(chunks);
  if (results.ok()) {
    std::span<const ReadoutResult> rest = *results;
    for (std::size_t i = 0; i < chunks.size(); ++i) {
      const std::size_t count = chunks[i].readouts.size();
      take(*computed[i], rest.first(count));
      rest = rest.subspan(count);
    }
  } else if (results.status().code() == StatusCode::kResourceExhausted && active_.size() > 1) {
    preempt_youngest();
  } else if (choices.size() == 1) {
    end(choices[0]->request->id, std::move(results).status());
  } else {
    // One of them fails: each alone, so that the others go on.
    for (Choice* choice : choices) {
      if (std::ranges::find(active_, choice) != active_.end()) compute({choice});
    }
  }
}

void Scheduler::take(Choice& choice, std::span<const ReadoutResult> results) {
  if (!prompt_pending(choice)) {
    if (!results.empty()) take_token(choice, results[0]);
    return;
  }
  // The results belong to the last tokens appended, and score those after them.
  std::size_t position = static_cast<std::size_t>(engine_.length(*choice.sequence)) - results.size();
  for (const ReadoutResult& result : results) {
    ScoredToken& score = choice.request->scores[choice.prompt][++position];
    score.logprob = result.target_logprob;
    score.top = result.top;
  }
  if (waiting(choice) == 0) prompt_done(choice);
}

void Scheduler::take_token(Choice& choice, const ReadoutResult& result) {
  const GenerationRequest& ask = choice.request->ask;
  ++choice.generated;
  ++choice.request->usage.completion_tokens;
  ++counts_.tokens_generated;
  GenerationEvent event{.request = choice.request->id, .choice = choice.index};
  if (std::ranges::find(ask.stop_tokens, result.token) != ask.stop_tokens.end()) {
    event.finish = FinishReason::kStop;
    return finish(choice, std::move(event));
  }
  choice.tokens.push_back(result.token);
  TextStream::Piece piece = choice.text.push({.token = result.token, .logprob = result.logprob, .top = result.top});
  event.text = std::move(piece.text);
  event.tokens = std::move(piece.tokens);
  if (piece.stopped) {
    event.finish = FinishReason::kStop;
  } else if (choice.generated == ask.max_tokens) {
    event.finish = FinishReason::kLength;
  }
  if (event.finish) return finish(choice, std::move(event));
  if (!event.tokens.empty()) events_.push_back(std::move(event));
}

// Emits the choice's last event with what its text still held back, and the request's after its last choice.
void Scheduler::finish(Choice& choice, GenerationEvent event) {
  TextStream::Piece piece = choice.text.finish();
  event.request = choice.request->id;
  event.text += piece.text;
  std::ranges::move(piece.tokens, std::back_inserter(event.tokens));
  events_.push_back(std::move(event));
  close(choice);
  if (--choice.request->unfinished == 0) end(choice.request->id, ok_status());
}

void Scheduler::preempt_youngest() {
  Choice* youngest = *std::ranges::max_element(active_, {}, [](const Choice* choice) { return choice->order(); });
  close(*youngest);
  pending_.push_front(youngest);
  ++counts_.preemptions;
}

void Scheduler::close(Choice& choice) {
  if (!choice.sequence) return;
  engine_.close(*choice.sequence);
  choice.sequence.reset();
  std::erase(active_, &choice);
}

}  // namespace flotilla
