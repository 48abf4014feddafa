// What publishing beside the training costs the training: the learner's loop on a real model, whose groups are there at
// once and made of tokens at random. And what skips, and a history that begins anew at their ends, cost and save on the
// versions of a run.
//
//   publish_bench --model FILE [--hub FOLDER] [--steps N] [--publish-every N] [--anchor-every N] [--groups N]
//                 [--threads N] [--learning-rate X] [--uplink MBIT]
//   publish_bench --model FILE --hub FOLDER --study OWNER/RUN --steps VERSIONS
#include <algorithm>
#include <deque>
#include <iterator>
#include <thread>

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include "base/files.h"
#include "base/log.h"
#include "base/thread_pool.h"
#include "learn/hub_snapshot_sink.h"
#include "learn/learner_loop.h"
#include "learn/torch/bench/random_group.h"
#include "learn/torch/torch_trainer.h"
#include "sync/delta.h"
#include "sync/run_spec.h"
#include "sync/subscriber.h"
#include "sync/version_parts.h"
#include "telemetry/event_sinks.h"

namespace flotilla {
namespace {

using std::chrono::duration;

struct Options {
  std::string model, hub;
  int steps = 12, publish_every = 1, anchor_every = 20, groups = 4, threads = core_count();
  double learning_rate = 1e-6;
  double uplink = 0;  // Mbit/s; 0: as fast as the folder
  std::string study;  // OWNER/RUN on the hub
};

// A folder behind a link that carries so much a second.
class LinkedStore final : public ObjectStore {
 public:
  LinkedStore(std::unique_ptr<ObjectStore> store, double uplink) : store_(std::move(store)), uplink_(uplink) {}

  Result<Object> get(std::string_view key) override { return store_->get(key); }
  Result<Bytes> get_range(std::string_view key, std::uint64_t offset, std::uint64_t length) override {
    return store_->get_range(key, offset, length);
  }
  Result<ObjectInfo> head(std::string_view key) override { return store_->head(key); }
  Result<ETag> put_if_absent(std::string_view key, ByteSpan bytes) override {
    send(bytes);
    return store_->put_if_absent(key, bytes);
  }
  Result<ETag> put_if_match(std::string_view key, ByteSpan bytes, const ETag& expected) override {
    send(bytes);
    return store_->put_if_match(key, bytes, expected);
  }
  Result<ETag> put(std::string_view key, ByteSpan bytes) override {
    send(bytes);
    return store_->put(key, bytes);
  }
  Result<ListPage> list(std::string_view prefix, std::string_view after, std::size_t limit) override {
    return store_->list(prefix, after, limit);
  }
  Status remove(std::string_view key) override { return store_->remove(key); }

 private:
  void send(ByteSpan bytes) const {
    if (uplink_ > 0) std::this_thread::sleep_for(duration<double>(static_cast<double>(bytes.size()) * 8e-6 / uplink_));
  }
  const std::unique_ptr<ObjectStore> store_;
  const double uplink_;
};

// As many groups as a batch needs, at every look.
class RandomGroups final : public RolloutSource {
 public:
  RandomGroups(const ModelDescription& description, int batch) : description_(description), batch_(batch) {}
  Result<RolloutPoll> poll(Version oldest, Version, const std::function<bool(const GroupId&)>&) override {
    RolloutPoll poll;
    for (int i = 0; i < batch_; ++i) {
      Group group = random_group(counter_, description_.vocabulary);
      group.identity.worker = WorkerId("bench");
      group.identity.group = GroupId(fmt::format("{:032x}", counter_++));
      for (Episode& episode : group.episodes) {
        episode.spans = {{group.prompt_tokens, static_cast<std::int32_t>(episode.tokens.size()), oldest, {}}};
      }
      poll.groups.push_back({std::move(group), {}});
    }
    return poll;
  }

 private:
  const ModelDescription& description_;
  const int batch_;
  std::uint64_t counter_ = 0;
};

void print_events(const std::vector<Event>& events) {
  fmt::print(
      "version  step | due to visible  held  encode  upload s |  delta kB  skips kB  anchor kB  changed %  rescaled\n");
  double held = 0, worked = 0, steps = 0;
  int versions = 0;
  for (const Event& event : events) {
    const auto& f = event.fields;
    if (event.kind == "learner.step") steps += f["seconds_train"].get<double>();
    if (event.kind != "learner.publish") continue;
    const auto number = [&](const char* name) { return f[name].get<double>(); };
    fmt::print("{:7}  {:4} | {:14.2f}  {:4.2f}  {:6.2f}  {:8.2f} | {:9.0f} {:9.0f} {:10.0f}  {:9.3f}  {:8}\n",
               f["version"].get<int>(), f["step"].get<int>(), number("seconds"), number("seconds_held"),
               number("seconds_encode"), number("seconds_upload"), number("delta_bytes") / 1e3,
               number("skip_bytes") / 1e3, number("anchor_bytes") / 1e3, 100 * number("changed") / number("total"),
               f["rescaled_groups"].get<int>());
    if (f["step"] == 0) continue;
    ++versions;
    held += number("seconds_held");
    worked += number("seconds_encode") + number("seconds_upload");
  }
  fmt::print(
      "steps took {:.1f} s; for {} versions after the first, training stood still for {:.3f} s each; encoding and "
      "upload took {:.2f} s each\n",
      steps, versions, held / versions, worked / versions);
}

// The version after `state` by its delta.
Result<GridState> next_state(ObjectStore& store, const HubLayout& layout, const ModelDescription& description,
                             Version version, const std::shared_ptr<const GridState>& state, DeltaHistory& history) {
  VersionParts parts{.base = [&](TensorIndex i) { return state->tensors[static_cast<std::size_t>(i)]; },
                     .history = std::make_shared<const DeltaHistory>(history)};
  FLOTILLA_ASSIGN_OR_RETURN(Object object, store.get(layout.delta(version)));
  FLOTILLA_ASSIGN_OR_RETURN(parts.deltas.emplace_back(), read_delta_frame(description, std::move(object.bytes)));
  FLOTILLA_ASSIGN_OR_RETURN(object, store.get(layout.manifest(version)));
  parts.deltas.back().forgets =
      as_text(object.bytes).find(history_digest(no_history(description)).to_hex()) != std::string_view::npos;
  GridState next;
  ThreadPool pool(core_count());
  std::size_t part = 0;
  FLOTILLA_RETURN_IF_ERROR(make_tensors(
      description, parts, pool,
      [&](TensorIndex, std::span<GridTensor> tensors) {
        std::ranges::move(tensors, std::back_inserter(next.tensors));
        return ok_status();
      },
      part, &history));
  return next;
}

// What a run's versions would cost with a history that begins anew at every so manieth, and skips between those.
Status study(const Options& options) {
  struct Chain {
    std::uint64_t every;  // 0: never
    DeltaHistory history;
    std::uint64_t bytes = 0, since = 0;
    std::string skips = {};
  };
  FLOTILLA_ASSIGN_OR_RETURN(const Model model, load_model(options.model));
  const ModelDescription& description = model.weights.description;
  FLOTILLA_ASSIGN_OR_RETURN(const auto store, open_directory_store(options.hub, false));
  const HubLayout layout{options.study};
  FLOTILLA_ASSIGN_OR_RETURN(const RunSpec spec, fetch_run_spec(*store, layout, ""));
  const auto subscriber = Subscriber::create(*store, layout, description, spec.learner_key, null_event_sink());
  FLOTILLA_ASSIGN_OR_RETURN(const PulledVersion first, subscriber->fetch(Version(0)));

  std::vector<Chain> chains;
  for (const std::uint64_t every : {0, 20, 10, 5}) chains.push_back({every, no_history(description)});
  std::deque<std::shared_ptr<const GridState>> states = {first.state};  // the newest first
  DeltaHistory history = no_history(description);
  for (std::uint64_t version = 1; version <= static_cast<std::uint64_t>(options.steps); ++version) {
    FLOTILLA_ASSIGN_OR_RETURN(GridState next,
                              next_state(*store, layout, description, Version(version), states.front(), history));
    states.push_front(std::make_shared<const GridState>(std::move(next)));
    if (states.size() > 21) states.pop_back();
    for (Chain& chain : chains) {
      FLOTILLA_ASSIGN_OR_RETURN(EncodedDelta delta,
                                encode_delta(description, *states[1], chain.history, *states[0], core_count()));
      chain.bytes += delta.bytes.size();
      chain.since += delta.bytes.size();
      chain.history = std::move(delta.history);
      if (chain.every == 0 || version % chain.every != 0) continue;
      chain.history = no_history(description);
      FLOTILLA_ASSIGN_OR_RETURN(const EncodedDelta skip, encode_delta(description, *states[chain.every], chain.history,
                                                                      *states[0], core_count()));
      chain.skips += fmt::format(" {}/{}", skip.bytes.size() / 1000, chain.since / 1000);
      chain.since = 0;
    }
    fmt::print(stderr, "version {}\n", version);
  }
  std::uint64_t remembered = 0;
  for (const ChangeHistory& region : chains[0].history) remembered += sizeof(PastChange) * region.size();
  fmt::print("{} versions; a history that never begins anew has {} kB in the end\n", options.steps, remembered / 1000);
  fmt::print("history anew every | deltas kB  of never | skips between: a skip kB / deltas passed over kB\n");
  for (const Chain& chain : chains) {
    fmt::print("{:18} | {:9} {:9.4f} |{}\n", chain.every == 0 ? "never" : std::to_string(chain.every),
               chain.bytes / 1000, static_cast<double>(chain.bytes) / static_cast<double>(chains[0].bytes),
               chain.skips);
  }
  return ok_status();
}

Status run(const Options& options) {
  FLOTILLA_ASSIGN_OR_RETURN(Model model, load_model(options.model));
  const ModelDescription description = model.weights.description;
  const TemporaryFolder scratch;
  const std::string folder = options.hub.empty() ? (scratch.path() / "hub").string() : options.hub;
  FLOTILLA_ASSIGN_OR_RETURN(auto directory, open_directory_store(folder, true));
  LinkedStore store(std::move(directory), options.uplink);
  const HubLayout layout{"bench/publish"};
  FLOTILLA_ASSIGN_OR_RETURN(const auto key, SigningKey::generate());
  FLOTILLA_ASSIGN_OR_RETURN(const auto trainer, make_torch_trainer(description, {.threads = options.threads}));
  FLOTILLA_RETURN_IF_ERROR(trainer->set_masters(model.weights));
  model.weights.tensors.clear();

  MemorySink events;
  LearnerControl control;
  HubVersions versions(store, layout, key->public_key());
  FLOTILLA_ASSIGN_OR_RETURN(
      auto publisher, Publisher::open(store, layout, description, key, {.anchor_every = options.anchor_every}, events));
  HubSnapshotSink hub(std::move(publisher), versions, [&] { control.wake(); });
  RandomGroups groups(description, options.groups);
  CheckpointFolder checkpoints(scratch.path() / "checkpoints", description, 1);
  LearnerSettings settings{.run = layout.prefix, .learner = {}, .optimizer = {}, .loss = {}, .warmup = {}};
  settings.learner.steps = options.steps;
  settings.learner.batch_groups = options.groups;
  settings.learner.wanted_groups = options.groups;
  settings.learner.max_reuse = 1;
  settings.learner.max_staleness = 1000;
  settings.learner.publish_every = options.publish_every;
  settings.learner.checkpoint_every = 10000;
  settings.optimizer.learning_rate = options.learning_rate;
  settings.loss.token_budget = 64;
  settings.loss.kl = 0;
  settings.warmup.demonstrations = 0;
  LearnerLoop loop(settings, {.trainer = *trainer,
                              .source = groups,
                              .sink = hub,
                              .checkpoints = checkpoints,
                              .control = control,
                              .events = events,
                              .clock = system_clock(),
                              .flush_events = [] { return ok_status(); },
                              .demonstration = [](std::uint64_t) -> Result<TrainingSequence> {
                                return not_found("there is no warm-up");
                              },
                              .wait = [&](std::chrono::nanoseconds time) { control.wait(time); }});
  FLOTILLA_RETURN_IF_ERROR(loop.run());
  print_events(events.events());
  return ok_status();
}

}  // namespace
}  // namespace flotilla

int main(int argc, char** argv) {
  flotilla::Options options;
  CLI::App app("What publishing costs the training");
  app.add_option("--model", options.model, "GGUF file or folder of the model")->required();
  app.add_option("--hub", options.hub, "Folder of the hub; a temporary one unless it is given");
  app.add_option("--steps", options.steps, "Optimizer steps")->check(CLI::Range(1, 100000))->capture_default_str();
  app.add_option("--publish-every", options.publish_every, "Steps")->check(CLI::Range(1, 10000))->capture_default_str();
  app.add_option("--anchor-every", options.anchor_every, "Versions")
      ->check(CLI::Range(1, 10000))
      ->capture_default_str();
  app.add_option("--groups", options.groups, "Of a step")->check(CLI::Range(1, 1000))->capture_default_str();
  app.add_option("--threads", options.threads, "Threads")->check(CLI::Range(1, 1024))->capture_default_str();
  app.add_option("--learning-rate", options.learning_rate, "Of the optimizer")->capture_default_str();
  app.add_option("--uplink", options.uplink, "Mbit/s of the link to the hub; 0: as fast as the folder")
      ->capture_default_str();
  app.add_option("--study", options.study,
                 "Train nothing: encode the versions 1 to STEPS of this run on the hub, OWNER/RUN, with skips and with "
                 "histories of other lengths");
  CLI11_PARSE(app, argc, argv);
  flotilla::set_log_level(flotilla::LogLevel::kWarning);
  const flotilla::Status status = options.study.empty() ? flotilla::run(options) : flotilla::study(options);
  if (!status.ok()) fmt::print(stderr, "publish_bench: {}\n", status.to_string());
  return status.ok() ? 0 : 1;
}
