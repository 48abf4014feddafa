#include "telemetry/event_schema.h"

#include <algorithm>

#include <fmt/format.h>

namespace flotilla {
namespace {

using enum EventFieldType;
constexpr bool kOptional = true;

const std::vector<EventKind>& table() {
  static const std::vector<EventKind> kinds = {
      {"learner.start",
       "The learner begins or begins again; `learner.resume` follows when it found a checkpoint.",
       {{"run", kText, "OWNER/RUN"},
        {"mode", kText, "async or sequential"},
        {"generation", kInteger, "the learner's generation, above all earlier ones of the run"},
        {"batch_groups", kInteger, "groups a step"},
        {"group_size", kInteger, "episodes a group"},
        {"max_staleness", kInteger, "versions"},
        {"max_reuse", kInteger, "steps that may train on one group"},
        {"steps", kInteger, "limit of optimizer steps; 0: none"},
        {"budget_seconds", kNumber, "limit of time; 0: none"}}},
      {"learner.resume",
       "Training goes on from a checkpoint. Steps of earlier events after `step` are not part of the surviving "
       "lineage.",
       {{"step", kInteger, "the last step that the checkpoint contains"},
        {"version", kInteger, "the version that is published next to continue"},
        {"groups", kInteger, "groups in the replay buffer"},
        {"seconds", kNumber, "of RL that the checkpoint has used of the budget"}}},
      {"learner.warmup_step",
       "One optimizer step of the supervised warm-up.",
       {{"step", kInteger, "from 1"},
        {"steps", kInteger, "of the whole warm-up"},
        {"loss", kNumber, "mean over the model's tokens, nats"},
        {"tokens", kInteger, "model tokens of the step"},
        {"seconds", kNumber, "of the step"}}},
      {"learner.group",
       "A group was read from the hub and is in the replay buffer.",
       {{"group", kText, "its id"},
        {"worker", kText, "who made it"},
        {"version", kInteger, "the oldest version that produced a token of it"},
        {"reward_mean", kNumber, "over its episodes"},
        {"model_tokens", kInteger, "that its episodes sampled"}}},
      {"learner.dropped_group",
       "A group will not be trained on again, for another reason than reuse.",
       {{"group", kText, "its id, or the key when the group cannot be read"},
        {"worker", kText, "who made it", kOptional},
        {"reason", kText, "stale, or what is wrong with it"},
        {"staleness", kInteger, "versions", kOptional}}},
      {"learner.batch",
       "A batch was drawn. `learner.step` with the same step follows unless the learner dies.",
       {{"step", kInteger, "that the batch is for"},
        {"eligible", kInteger, "groups in the buffer that could have been drawn"},
        {"never_used", kInteger, "groups of the batch that no step has trained on"},
        {"seconds_wait", kNumber, "that the learner waited for a whole batch"}}},
      {"learner.step",
       "One optimizer step.",
       {{"step", kInteger, "from 1, over the whole run"},
        {"version", kInteger, "newest published version when the batch was drawn"},
        {"groups", kTexts, "ids of the groups trained on"},
        {"reuse", kIntegers, "for each group, the steps that have trained on it on this lineage, this one included"},
        {"staleness", kIntegers,
         "entry s counts the groups that are s versions old, a version on its way counted as there"},
        {"reward_mean", kNumber, "over the episodes of the batch"},
        {"zero_signal", kInteger, "groups whose rewards are all equal"},
        {"loss", kNumber, "policy loss, divided by the fixed token budget"},
        {"kl", kNumber, "mean k3 against version 0, nats a token; 0 without a KL term"},
        {"gradient_norm", kNumber, "before clipping"},
        {"tokens", kInteger, "that the forward pass saw"},
        {"model_tokens", kInteger, "that the loss is over"},
        {"gated", kInteger, "model tokens that the gate dropped"},
        {"past_gap", kInteger, "model tokens whose probability differs by more than gate_delta from the worker's"},
        {"past_ratio", kInteger, "model tokens whose ratio of probabilities leaves [0.8, 1.2]"},
        {"gap_mean", kNumber, "mean absolute difference of logprob between learner and worker, nats"},
        {"ratio_max", kNumber, "largest ratio of probabilities, learner over worker"},
        {"seconds_wait", kNumber, "for the batch"},
        {"seconds_train", kNumber, "forward, backward, optimizer"},
        {"tokens_per_second", kNumber, "tokens over seconds_train"}}},
      {"learner.publish",
       "A version can be pulled.",
       {{"version", kInteger, "its number"},
        {"step", kInteger, "the last step that it contains"},
        {"state", kText, "digest of the state, hex"},
        {"delta_bytes", kInteger, "0: there is no delta"},
        {"skip_bytes", kInteger, "of all skips; 0: there is none"},
        {"anchor_bytes", kInteger, "0: there is no anchor"},
        {"changed", kInteger, "int8 weights changed against the base"},
        {"total", kInteger, "int8 weights of the model"},
        {"rescaled_groups", kInteger, "scale groups and vectors that got a new scale because a weight left the range"},
        {"rescaled_bytes", kInteger, "their scales and integers, which travel whole"},
        {"seconds", kNumber,
         "from when it was due until the learner heard, between two micro-batches, that it is there"},
        {"seconds_held", kNumber, "that training stood still for it: rounding, and waiting where it had to be there"},
        {"seconds_encode", kNumber, "checks, digests and encoding, beside the training"},
        {"seconds_upload", kNumber, "writing and reading back, beside the training"}}},
      {"learner.checkpoint",
       "A checkpoint is whole on disk.",
       {{"step", kInteger, "the last step that it contains"},
        {"bytes", kInteger, "on disk"},
        {"seconds", kNumber, "to write it"}}},
      {"learner.clean",
       "The learner has removed what the run does not need any more from the hub (docs/design/retention.md).",
       {{"objects", kInteger, "removed"},
        {"bytes", kInteger, "of them"},
        {"left", kInteger, "objects that the next look removes"},
        {"seconds", kNumber, "of the look"}}},
      {"learner.finish",
       "The learner ends in order.",
       {{"step", kInteger, "the last step"},
        {"version", kInteger, "the last version"},
        {"reason", kText, "steps, budget, stop; leave: the run may go on; or what went wrong"},
        {"seconds", kNumber, "of RL"}}},
      {"worker.start",
       "A worker has joined the run and begins.",
       {{"run", kText, "OWNER/RUN"},
        {"worker", kText, "its id"},
        {"operator", kText, "who it belongs to"},
        {"backend", kText, "e.g. cpu-avx2"},
        {"threads", kInteger, "of the engine"},
        {"sweep_groups", kInteger, "groups decoded together; 0: chosen while it works"}}},
      {"worker.pull",
       "The worker holds another version.",
       {{"version", kInteger, "its number"},
        {"bytes", kInteger, "fetched"},
        {"path", kText, "what was fetched: \"delta 4, delta 5\""},
        {"seconds", kNumber, "fetch, decode, check and swap: the parts that follow"},
        {"fetch_seconds", kNumber, "manifests and objects"},
        {"check_seconds", kNumber, "decode and check"},
        {"wait_seconds", kNumber, "within a sweep, for the forward call under way"},
        {"swap_seconds", kNumber, "into the engine"}}},
      {"worker.wait",
       "The worker has nothing to do; emitted once for each reason in a row.",
       {{"reason", kText, "what it waits for"}}},
      {"worker.claim",
       "In a run with claims: the worker has a block of tasks more.",
       {{"epoch", kInteger, "the pass over all tasks"},
        {"block", kInteger, "of the epoch"},
        {"lease", kInteger, "0, or above it when others have held the block before"},
        {"requests", kInteger, "to the hub for claims, since the event before"}}},
      {"worker.limit",
       "Other programs or want of memory limit the worker otherwise than before; 1 and 1: not any more.",
       {{"time_share", kNumber, "of the time in which it computes"},
        {"memory_share", kNumber, "of the groups of a sweep that it has in flight, at least one"}}},
      {"worker.sweep",
       "A sweep has ended; of one that is refilled, as many groups as it began with.",
       {{"version", kInteger, "that the worker holds at its end"},
        {"groups", kInteger, "in the sweep"},
        {"episodes", kInteger, "in the sweep"},
        {"model_tokens", kInteger, "sampled"},
        {"prefill_tokens", kInteger, "prompt and environment tokens read"},
        {"evictions", kInteger,
         "sequences that made room, in the KV pool or for others on the machine, and were computed again"},
        {"reward_mean", kNumber, "over its episodes"},
        {"seconds", kNumber, "of the sweep"},
        {"tokens_per_second", kNumber, "model tokens over seconds"},
        {"resident_mib", kNumber,
         "the most that the process had in memory, without the KV blocks in use, by a look a second"}}},
      {"worker.group",
       "The last episode of a group has ended.",
       {{"group", kText, "its id"},
        {"version", kInteger, "the oldest that produced a token of it"},
        {"task", kInteger, "index in the split"},
        {"reward_mean", kNumber, "over its episodes"}}},
      {"worker.upload",
       "A group is at the hub.",
       {{"group", kText, "its id"},
        {"bytes", kInteger, "of the object"},
        {"attempts", kInteger, "writes that it took"},
        {"seconds", kNumber, "from the end of the group to the answer"}}},
      {"worker.stop",
       "The worker ends in order.",
       {{"reason", kText, "finished, signal or what went wrong"},
        {"groups", kInteger, "uploaded in its life"},
        {"dropped", kInteger, "groups in flight that were dropped"}}},
      {"hub.error",
       "The hub did not do what it was asked; the operation is tried again or given up as its owner decides.",
       {{"operation", kText, "get, put, list, ..."},
        {"key", kText, "object or prefix"},
        {"message", kText, "the error"}}},
      {"eval.progress",
       "An evaluation goes on.",
       {{"done", kInteger, "episodes ended"},
        {"episodes", kInteger, "of the whole evaluation"},
        {"seconds", kNumber, "so far"}}},
      {"eval.result",
       "An evaluation has ended.",
       {{"source", kText, "run, file or folder"},
        {"version", kInteger, "of the run", kOptional},
        {"questions", kInteger, "held-out tasks"},
        {"samples", kInteger, "episodes a task"},
        {"pass_at_1", kNumber, "mean reward"},
        {"pass_at_1_error", kNumber, "its standard error over the questions"},
        {"pass_at_k", kNumber, "unbiased estimate with k = samples"},
        {"pass_at_k_error", kNumber, "its standard error over the questions"},
        {"model_tokens", kInteger, "sampled"},
        {"seconds", kNumber, "of the evaluation"}}},
      {"demo.phase", "The demo begins a phase.", {{"phase", kText, "setup, warmup, before, rl, after or report"}}},
      {"log.lost",
       "The log could not keep up or could not write; `sequence` has no gap for what was lost.",
       {{"events", kInteger, "lost since the last event"}}},
  };
  return kinds;
}

std::string_view type_text(EventFieldType type) {
  switch (type) {
    case kBoolean: return "boolean";
    case kInteger: return "integer";
    case kNumber: return "number";
    case kText: return "text";
    case kIntegers: return "integers";
    case kTexts: return "texts";
  }
  return "";
}

bool has_type(const nlohmann::json& value, EventFieldType type) {
  const auto all = [&](auto&& predicate) {
    return value.is_array() && std::all_of(value.begin(), value.end(), predicate);
  };
  switch (type) {
    case kBoolean: return value.is_boolean();
    case kInteger: return value.is_number_integer();
    case kNumber: return value.is_number() || value.is_null();
    case kText: return value.is_string();
    case kIntegers: return all([](const nlohmann::json& v) { return v.is_number_integer(); });
    case kTexts: return all([](const nlohmann::json& v) { return v.is_string(); });
  }
  return false;
}

}  // namespace

std::span<const EventKind> event_kinds() { return table(); }

Status check_event(const Event& event) {
  const auto kind =
      std::find_if(table().begin(), table().end(), [&](const EventKind& k) { return k.name == event.kind; });
  if (kind == table().end()) return invalid_argument(fmt::format("event kind {} is not in the table", event.kind));
  if (!event.fields.is_object()) return invalid_argument(fmt::format("{}: fields are not an object", event.kind));
  for (const EventField& field : kind->fields) {
    const auto found = event.fields.find(field.name);
    if (found == event.fields.end()) {
      if (field.optional) continue;
      return invalid_argument(fmt::format("{}: field {} is missing", event.kind, field.name));
    }
    if (!has_type(*found, field.type)) {
      return invalid_argument(fmt::format("{}: field {}: expected {}, got {}", event.kind, field.name,
                                          type_text(field.type), found->type_name()));
    }
  }
  for (const auto& item : event.fields.items()) {
    const bool known = std::any_of(kind->fields.begin(), kind->fields.end(),
                                   [&](const EventField& field) { return field.name == item.key(); });
    if (!known) return invalid_argument(fmt::format("{}: field {} is not in the table", event.kind, item.key()));
  }
  return ok_status();
}

std::string events_page() {
  std::string text =
      R"(# Event log

What the parts of a run did, as JSON lines: one event a line, UTF-8, each line ended by a line feed. Each process is one
writer with a folder of its own; the folder holds segments named by ten digits and `.jsonl`, numbered from 0 without a
gap except where old ones were removed. A segment is closed when it has the size or the age that its writer chose, and at
the end of the process; it is never written again, and goes to the hub as `<owner>/<run>/events/<writer>/<number>`.

A line:

    {"time_ms":1767225600123,"monotonic_ns":51200000000,"writer":"learner","sequence":7,"kind":"learner.checkpoint","fields":{"bytes":541,"seconds":0.2,"step":5}}

| field | meaning |
|---|---|
| `time_ms` | milliseconds since 1970-01-01 UTC, by the writer's clock; may jump |
| `monotonic_ns` | nanoseconds since an arbitrary moment; never goes back within one life of the process |
| `writer` | which process: `learner`, or the worker's id |
| `sequence` | counts the writer's events from 0, over restarts, without a gap |
| `kind` | one of those below; a reader skips kinds that it does not know |
| `fields` | an object, by kind; a reader ignores fields that it does not know |

The six fields are there in every line and no others. A process that is killed leaves at most one torn line, the last of a
segment: readers skip and report it. Any other line that is not as described means that the segment is corrupt. Numbers
that would be not-a-number or infinite are `null`; bytes that are not UTF-8 are replaced by U+FFFD.

## What can be checked from it

**No group is trained on more often than `max_reuse` on the lineage that survived.** Take the learner's events in order.
At a `learner.resume`, forget every `learner.step` whose `step` is above the resume's. Of what remains at the end, count
for each group id the steps that name it: no count exceeds `max_reuse` of `learner.start`, and the entry of `reuse` in the
n-th of them is n. The learner flushes the log before a checkpoint, so that each step which a resume can keep is in it.

**No version is published twice.** The `version` of `learner.publish` only rises, over resumes too.

**Staleness.** No entry of `staleness` beyond `max_staleness` is above 0.

## Kinds

This section is generated from `src/telemetry/event_schema.cc`.
)";
  for (const EventKind& kind : table()) {
    text += fmt::format("\n### {}\n\n{}\n\n| field | type | meaning |\n|---|---|---|\n", kind.name, kind.help);
    for (const EventField& field : kind.fields) {
      text += fmt::format("| `{}` | {}{} | {} |\n", field.name, type_text(field.type),
                          field.optional ? ", optional" : "", field.help);
    }
  }
  return text;
}

}  // namespace flotilla
