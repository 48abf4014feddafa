#include "rollout/worker.h"

#include <malloc.h>

#include <algorithm>
#include <condition_variable>
#include <functional>
#include <limits>
#include <mutex>
#include <numeric>
#include <optional>
#include <thread>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/log.h"
#include "rollout/claim_keeper.h"
#include "rollout/group_file.h"
#include "rollout/memory_plan.h"
#include "rollout/operating_point.h"
#include "rollout/uploader.h"
#include "rollout/version_watch.h"
#include "rollout/wish.h"
#include "rollout/worker_counter.h"
#include "sync/subscriber.h"

namespace flotilla {
namespace {

using std::chrono::milliseconds;
using std::chrono::nanoseconds;

double seconds_of(nanoseconds time) { return std::chrono::duration<double>(time).count(); }

constexpr std::int64_t kMostSequences = 128;  // of a sweep whose size is not given: more only take longer

// Requests a stop of its own when `grace` has passed since `stop` was requested.
class GracePeriod {
 public:
  GracePeriod(const std::stop_token& stop, milliseconds grace)
      : on_stop_(stop, [this] {
          const std::lock_guard lock(mutex_);
          begun_ = true;
          changed_.notify_all();
        }) {
    thread_ = std::jthread([this, grace](const std::stop_token& done) {
      std::unique_lock lock(mutex_);
      if (!changed_.wait(lock, done, [this] { return begun_; })) return;
      changed_.wait_for(lock, done, grace, [] { return false; });
      if (!done.stop_requested()) over_.request_stop();
    });
  }
  std::stop_token token() const { return over_.get_token(); }

 private:
  std::mutex mutex_;
  std::condition_variable_any changed_;
  bool begun_ = false;
  std::stop_source over_;
  std::stop_callback<std::function<void()>> on_stop_;
  std::jthread thread_;
};

class Worker {
 public:
  Worker(ObjectStore& store, const WorkerOptions& options, EventSink& events, std::stop_token stop, const Clock& clock)
      : store_(store),
        options_(options),
        events_(events),
        stop_(std::move(stop)),
        clock_(clock),
        id_(worker_id(options.key->public_key())),
        operator_(options.operator_name.empty() ? id_.value() : options.operator_name),
        retrier_(options.retry, xxh3_64(as_bytes(id_.value())), events, clock),
        grace_(stop_, options.stop_grace),
        wish_(options.patience),
        courtesy_(options.politeness, options.threads) {}

  Result<WorkerReport> run() {
    const Status status = work();
    WorkerReport report;
    if (uploader_) {
      if (status.ok() || status.code() == StatusCode::kCancelled) {
        uploader_->wait_until(0, options_.stop_grace, grace_.token());
      }
      report.groups = uploader_->uploaded();
    }
    report.dropped = begun_ - report.groups;
    const bool stopped = status.code() == StatusCode::kCancelled && stop_.stop_requested();
    report.reason = status.ok() ? "finished" : stopped ? "stop" : status.to_string();
    if (started_) {
      events_.emit(
          {"worker.stop", {{"reason", report.reason}, {"groups", report.groups}, {"dropped", report.dropped}}});
    }
    uploader_.reset();
    if (!status.ok() && !stopped) return status;
    return report;
  }

 private:
  // Ok when the run is finished, cancelled when asked to stop.
  Status work() {
    FLOTILLA_RETURN_IF_ERROR(join());
    while (true) {
      if (stop_.stop_requested()) return cancelled("asked to stop");
      FLOTILLA_RETURN_IF_ERROR(uploader_->status());
      const Watching watching{.time = std::exchange(patience_, {}), .look = options_.poll, .stop = stop_};
      const auto head = retrier_.run("get", options_.layout.head(), stop_, [&] { return subscriber_->poll(watching); });
      if (head.status().code() == StatusCode::kNotFound) {
        FLOTILLA_RETURN_IF_ERROR(wait("the first version"));
        if (!wait_unless_stopped(stop_, options_.poll)) return cancelled("asked to stop");
        continue;
      }
      FLOTILLA_RETURN_IF_ERROR(head.status());
      if (head->state == RunState::kFinished) return ok_status();
      newest_ = head->version;
      const std::int64_t room = options_.upload_queue - uploader_->waiting();
      if (point_) point_->see(head->version, clock_.monotonic());
      look();
      const std::int64_t most = courtesy_.next_groups(full_sweep());
      const std::int64_t groups = wish_.take(*head, std::min(most, room), uploader_->uploaded(), clock_.monotonic());
      if (groups == 0) {
        FLOTILLA_RETURN_IF_ERROR(wait(wish_.reason()));
        continue;
      }
      if (claims_ && !claims_->wait_for(groups, options_.poll, stop_)) {
        wish_.give_back(groups);
        FLOTILLA_RETURN_IF_ERROR(claims_->status());
        FLOTILLA_RETURN_IF_ERROR(wait("a block of tasks"));
        continue;
      }
      waits_for_.clear();
      FLOTILLA_RETURN_IF_ERROR(swap_in_newest());
      FLOTILLA_RETURN_IF_ERROR(sweep(groups));
    }
  }

  Status join() {
    FLOTILLA_ASSIGN_OR_RETURN(assets_, retrier_.run("get", options_.layout.run_spec(), stop_, [this] {
      return open_run_assets(store_, options_.layout, options_.learner_fingerprint, options_.cache_folder,
                             options_.open_environment);
    }));
    FLOTILLA_ASSIGN_OR_RETURN(counter_, WorkerCounter::open(options_.state_folder, assets_.spec.run, id_));
    FLOTILLA_RETURN_IF_ERROR(open_claims());
    FLOTILLA_RETURN_IF_ERROR(make_engine());
    subscriber_ =
        Subscriber::create(store_, options_.layout, assets_.description, assets_.spec.learner_key, events_,
                           {.threads = options_.threads,
                            .check_threads = swaps_within_sweeps() ? 1 : options_.threads,  // beside the engine's
                            .held = [this](TensorIndex i) { return engine_->tensor(i); },
                            .stop = stop_});
    Uploader::Options upload{.status_key = options_.layout.worker_status(id_),
                             .status_interval = options_.status_interval,
                             .retry = options_.retry,
                             .seed = xxh3_64(as_bytes(id_.value()), 1)};
    if (claims_) {
      upload.on_upload = [this](const Upload& done) { claims_->uploaded(done.counter); };
      upload.complete_status = [this](nlohmann::json& status) { status["claims"] = claims_->held(); };
    }
    uploader_ = std::make_unique<Uploader>(store_, std::move(upload), events_, clock_);
    started_ = true;
    events_.emit({"worker.start",
                  {{"run", assets_.spec.run},
                   {"worker", id_.value()},
                   {"operator", operator_},
                   {"backend", backend()},
                   {"threads", options_.threads},
                   {"sweep_groups", options_.sweep_groups}}});
    tell("starting");
    return ok_status();
  }

  Status open_claims() {
    if (assets_.spec.claims == 0) return ok_status();
    const std::uint64_t tasks = assets_.environment->task_count(Split::kTrain);
    FLOTILLA_ASSIGN_OR_RETURN(
        claims_, ClaimKeeper::open(store_,
                                   {.layout = options_.layout,
                                    .key = options_.key,
                                    .order = task_order(assets_.spec, tasks),
                                    .lease = options_.lease,
                                    .file = options_.state_folder / assets_.spec.run / (id_.value() + ".claims.json"),
                                    .group_key =
                                        [this](std::uint64_t counter, Version version) {
                                          return options_.layout.rollout(version, id_, id_of(counter));
                                        },
                                    .retry = options_.retry,
                                    .seed = xxh3_64(as_bytes(id_.value()), 3)},
                                   events_, clock_));
    return ok_status();
  }

  // And decides how many groups it may sweep.
  Status make_engine() {
    const std::int64_t most = std::max<std::int64_t>(1, kMostSequences / assets_.spec.group_size);
    MemoryDemand demand;
    demand.engine.threads = options_.threads;
    demand.engine.isa = options_.isa;
    demand.groups = options_.sweep_groups > 0 ? options_.sweep_groups : most;
    demand.group_size = assets_.spec.group_size;
    demand.rows_per_call = options_.rows_per_call;
    FLOTILLA_ASSIGN_OR_RETURN(demand.prompt_tokens, prompt_tokens_to_plan(assets_.rules, [&](std::uint64_t i) {
                                return assigned(counter_->next() + i);
                              }));
    const std::int64_t available = available_memory();
    const std::int64_t limit = options_.memory_limit_bytes;
    const std::int64_t usable = limit > 0 && available > 0 ? std::min(limit, available) : std::max(limit, available);
    FLOTILLA_ASSIGN_OR_RETURN(const MemoryPlan plan, plan_memory(assets_.description, assets_.rules, demand, usable));
    log_info("worker", "memory: {}", memory_text(plan, demand, usable));
    demand.engine.kv_blocks = plan.kv_blocks;
    kv_block_bytes_ = plan.kv_bytes / plan.kv_blocks;
    if (options_.sweep_groups == 0) {
      // What does not fit would be evicted and computed again.
      const std::int64_t group_blocks =
          sweep_blocks_max(assets_.rules, demand.prompt_tokens, 1, assets_.spec.group_size);
      point_.emplace(std::clamp<std::int64_t>(plan.kv_blocks / group_blocks, 1, most));
    }
    FLOTILLA_ASSIGN_OR_RETURN(engine_, Engine::create(assets_.description, demand.engine));
    return ok_status();
  }

  GroupId id_of(std::uint64_t counter) const {
    GroupIdentity identity;
    identity.run = assets_.spec.run;
    identity.worker = id_;
    identity.counter = counter;
    identity.task = task_of(counter);
    return group_id(identity);
  }
  std::uint64_t task_of(std::uint64_t counter) const {
    return run_task(assets_.spec, id_, counter, assets_.environment->task_count(Split::kTrain));
  }
  Result<Task> assigned(std::uint64_t counter) const {
    return assets_.environment->task(Split::kTrain, task_of(counter));
  }

  bool swaps_within_sweeps() const { return assets_.spec.swap != WeightSwap::kDrain; }
  KvAfterSwap kv_after_swap() const {
    return assets_.spec.swap == WeightSwap::kKeep ? KvAfterSwap::kKeep : KvAfterSwap::kRecompute;
  }

  Status swap_in_newest() {
    if (!version_ || version_->version != newest_) tell("fetching");
    FLOTILLA_ASSIGN_OR_RETURN(std::optional<NextVersion> next,
                              retrier_.run("get", "weights", stop_, [this] { return subscriber_->pull(); }));
    if (!next) return ok_status();
    const nanoseconds pulled = clock_.monotonic();
    FLOTILLA_RETURN_IF_ERROR(engine_->load(next->weights));
    next->weights = nullptr;
    subscriber_->hold();
    malloc_trim(0);  // else the allocator keeps what the version was made of
    took(*std::move(next), pulled, {});
    return ok_status();
  }

  // The engine has the version now, and is all that has it. `swap`: when it began to take it; `wait`: before that.
  void took(NextVersion next, nanoseconds swap, nanoseconds wait) {
    version_ = std::move(next);
    const nanoseconds swapping = clock_.monotonic() - swap;
    events_.emit({"worker.pull",
                  {{"version", version_->version.value()},
                   {"bytes", version_->bytes},
                   {"path", version_->path},
                   {"seconds", seconds_of(version_->fetching + version_->checking + wait + swapping)},
                   {"fetch_seconds", seconds_of(version_->fetching)},
                   {"check_seconds", seconds_of(version_->checking)},
                   {"wait_seconds", seconds_of(wait)},
                   {"swap_seconds", seconds_of(swapping)}}});
  }

  // Counters of groups to begin, at most `groups`, in a run without claims as many; the wish is told of the others.
  Result<std::vector<std::uint64_t>> take_counters(std::int64_t groups) {
    std::vector<std::uint64_t> counters(static_cast<std::size_t>(groups));
    if (!claims_) {
      FLOTILLA_ASSIGN_OR_RETURN(const std::uint64_t first, counter_->take(static_cast<std::uint64_t>(groups)));
      std::iota(counters.begin(), counters.end(), first);
      return counters;
    }
    FLOTILLA_RETURN_IF_ERROR(claims_->status());
    counters = claims_->take(groups);
    wish_.give_back(groups - std::ssize(counters));
    return counters;
  }

  Result<SweepItem> item_of(std::uint64_t counter, std::vector<GroupIdentity>& identities) {
    FLOTILLA_ASSIGN_OR_RETURN(Task task, assigned(counter));
    identities.push_back(identity_of(counter, task.index));
    ++begun_;
    return SweepItem{.task = std::move(task),
                     .sample_group = sample_group(identities.back().group),
                     .episodes = assets_.spec.group_size};
  }

  Status sweep(std::int64_t groups) {
    FLOTILLA_ASSIGN_OR_RETURN(const auto counters, take_counters(groups));
    groups = std::ssize(counters);
    if (groups == 0) return ok_status();
    std::vector<GroupIdentity> identities;
    std::vector<SweepItem> items;
    for (const std::uint64_t counter : counters) {
      FLOTILLA_ASSIGN_OR_RETURN(items.emplace_back(), item_of(counter, identities));
    }
    const SweepSettings settings{.seed = assets_.spec.seed,
                                 .sampling = sampling(),
                                 .version = version_->version,
                                 .state = version_->state_digest,
                                 .kv = kv_after_swap(),
                                 .rows_per_call = options_.rows_per_call};
    tell("working");
    const nanoseconds begin = clock_.monotonic();
    SweepPart part{.begin = begin, .before = {}, .reward = 0};
    SweepHooks hooks{.on_group = [&](FinishedGroup finished) {
      const Group group{.identity = identities[finished.item],
                        .prompt_tokens = finished.prompt_tokens,
                        .episodes = std::move(finished.episodes)};
      FLOTILLA_RETURN_IF_ERROR(ship(group, part.reward));
      // A sweep that is refilled may have no end.
      if (finished.so_far.groups - part.before.groups >= groups) tell_sweep(finished.so_far, part);
      return ok_status();
    }};
    hooks.between_calls = [this] { return between_calls(); };
    computing_since_ = part.begin;
    limited_ = false;
    std::optional<VersionWatch> watch;
    std::optional<VersionWatch::Fetched> taken;
    nanoseconds taken_at{0};
    if (swaps_within_sweeps() || options_.refill) {
      watch.emplace(*subscriber_, version_->version,
                    VersionWatch::Options{.fetch = swaps_within_sweeps(),
                                          .poll = options_.poll,
                                          .retry = options_.retry,
                                          .seed = xxh3_64(as_bytes(id_.value()), 2)},
                    events_, clock_);
    }
    if (swaps_within_sweeps()) {
      hooks.newer = [&]() -> std::optional<NextVersion> {
        if (const auto head = watch->head(); head && head->version != newest_) {
          newest_ = head->version;
          tell("working");
        }
        taken = watch->take();
        if (!taken) return std::nullopt;
        taken_at = clock_.monotonic();
        return taken->version;
      };
      hooks.on_swap = [&](Version) {
        taken->version.weights = nullptr;
        watch->loaded();
        took(std::move(taken->version), taken_at, taken_at - taken->ready);
        taken.reset();
        tell("working");
      };
    }
    // One that began small would stay so for as long as it is refilled: it ends, and the next may be a full one.
    if (options_.refill && groups >= full_sweep()) {
      hooks.refill = [&]() -> Result<std::optional<SweepItem>> {
        if (!wants_another(watch->head())) return std::optional<SweepItem>();
        FLOTILLA_ASSIGN_OR_RETURN(const auto counter, take_counters(1));
        if (counter.empty()) return std::optional<SweepItem>();
        FLOTILLA_ASSIGN_OR_RETURN(SweepItem item, item_of(counter.front(), identities));
        return std::optional(std::move(item));
      };
    }
    FLOTILLA_ASSIGN_OR_RETURN(const SweepReport report,
                              run_sweep(*engine_, assets_.rules, settings, items, hooks, grace_.token()));
    if (point_ && !limited_) point_->add(report.groups, report.episodes, clock_.monotonic() - begin);
    if (report.groups > part.before.groups) tell_sweep(report, part);
    return ok_status();
  }

  // Whether a group is to be added to the sweep under way.
  bool wants_another(const std::optional<Head>& head) {
    if (!head || stop_.stop_requested() || limited_) return false;  // the next sweep is a smaller one
    // The sweep has to end for the new weights to be taken.
    if (!swaps_within_sweeps() && head->version != version_->version) return false;
    const std::int64_t room = options_.upload_queue - uploader_->waiting();
    return wish_.take(*head, std::min<std::int64_t>(1, room), uploader_->uploaded(), clock_.monotonic()) > 0;
  }

  // Of a sweep, since the last event about it.
  struct SweepPart {
    nanoseconds begin{0};
    SweepReport before;
    double reward = 0;  // sum over its episodes
  };

  void tell_sweep(const SweepReport& now, SweepPart& part) {
    const nanoseconds time = clock_.monotonic();
    const double seconds = seconds_of(time - part.begin);
    const std::int64_t episodes = now.episodes - part.before.episodes;
    const std::int64_t model_tokens = now.model_tokens - part.before.model_tokens;
    tokens_per_second_ = seconds > 0 ? static_cast<double>(model_tokens) / seconds : 0;
    events_.emit({"worker.sweep",
                  {{"version", version_->version.value()},
                   {"groups", now.groups - part.before.groups},
                   {"episodes", episodes},
                   {"model_tokens", model_tokens},
                   {"prefill_tokens", now.prompt_tokens + now.environment_tokens - part.before.prompt_tokens -
                                          part.before.environment_tokens},
                   {"evictions", now.evictions - part.before.evictions},
                   {"reward_mean", part.reward / static_cast<double>(episodes)},
                   {"seconds", seconds},
                   {"tokens_per_second", tokens_per_second_},
                   {"resident_mib", static_cast<double>(std::exchange(resident_, 0)) / (1 << 20)}}});
    part = {.begin = time, .before = now, .reward = 0};
  }

  // Sees what others do on the machine, when the last look is some time ago.
  void look() {
    const nanoseconds now = clock_.monotonic();
    if (!options_.machine_use || (looked_ && now - *looked_ < options_.look_interval)) return;
    looked_ = now;
    const double time_before = courtesy_.time_share(), memory_before = courtesy_.memory_share();
    courtesy_.see(options_.machine_use(now));
    const double time = courtesy_.time_share(), memory = courtesy_.memory_share();
    if (time == time_before && memory == memory_before) return;
    events_.emit({"worker.limit", {{"time_share", time}, {"memory_share", memory}}});
    log_info("worker", "computes {:.0f} % of the time, {:.3g} % of its groups", 100 * time, 100 * memory);
  }

  // Groups of a sweep while nothing limits it.
  std::int64_t full_sweep() const { return point_ ? point_->groups() : options_.sweep_groups; }

  // Groups that the sweep may go on with.
  std::int64_t between_calls() {
    const nanoseconds rest = courtesy_.rest_after(clock_.monotonic() - computing_since_);
    if (rest.count() > 0) wait_unless_stopped(grace_.token(), std::chrono::ceil<milliseconds>(rest));
    look();
    engine_->give_back(courtesy_.memory_share() < 1 ? 0 : kSpareKvBytes);
    computing_since_ = clock_.monotonic();
    if (resident_ == 0 || computing_since_ - resident_seen_ >= options_.look_interval) {
      resident_seen_ = computing_since_;
      resident_ = std::max(resident_, resident_memory() - engine_->usage().blocks_used * kv_block_bytes_);
    }
    limited_ = limited_ || courtesy_.time_share() < 1 || courtesy_.memory_share() < 1;
    return courtesy_.resident_groups(full_sweep());
  }

  GroupIdentity identity_of(std::uint64_t counter, std::uint64_t task) const {
    GroupIdentity identity;
    identity.run = assets_.spec.run;
    identity.seed = assets_.spec.seed;
    identity.operator_id = OperatorId(operator_);
    identity.worker = id_;
    identity.counter = counter;
    identity.task = task;
    identity.backend = backend();
    identity.tokenizer = assets_.tokenizer->digest();
    identity.environment = assets_.environment->digest();
    identity.corpus = assets_.spec.environment;
    identity.sampling = sampling();
    identity.group = group_id(identity);
    return identity;
  }

  Status ship(const Group& group, double& reward) {
    double sum = 0;
    for (const Episode& episode : group.episodes) sum += episode.reward;
    reward += sum;
    if (const Status status = check_group(group); !status.ok()) {
      return internal_error(fmt::format("made a bad group: {}", status.to_string()));
    }
    events_.emit({"worker.group",
                  {{"group", group.identity.group.value()},
                   {"version", group.oldest_version().value()},
                   {"task", group.identity.task},
                   {"reward_mean", sum / static_cast<double>(group.episodes.size())}}});
    if (claims_) FLOTILLA_RETURN_IF_ERROR(claims_->made(group.identity.counter, group.oldest_version()));
    uploader_->add({.group = group.identity.group,
                    .counter = group.identity.counter,
                    .key = options_.layout.rollout(group.oldest_version(), id_, group.identity.group),
                    .bytes = write_group(group),
                    .ended = clock_.monotonic()});
    return uploader_->status();
  }

  // The next look at the hub waits until head moves, or it is time for another look at the rest.
  Status wait(const std::string& reason) {
    if (reason != waits_for_) {
      waits_for_ = reason;
      tell("waiting");
      engine_->give_back(0);
      events_.emit({"worker.wait", {{"reason", reason}}});
      log_info("worker", "waiting for: {}", reason);
    }
    patience_ = options_.poll;
    return stop_.stop_requested() ? cancelled("asked to stop") : ok_status();
  }

  void tell(std::string_view state) {
    nlohmann::json status = {{"format", 1},
                             {"run", assets_.spec.run},
                             {"worker", id_.value()},
                             {"operator", operator_},
                             {"program", FLOTILLA_VERSION},
                             {"backend", backend()},
                             {"arithmetic", kArithmetic},
                             {"threads", options_.threads},
                             {"state", state},
                             {"waits_for", waits_for_},
                             {"counter", counter_->next()},
                             {"begun", begun_},
                             {"tokens_per_second", tokens_per_second_},
                             {"version", nullptr}};
    if (version_) status["version"] = version_->version.value();
    status["newest"] = newest_ ? nlohmann::json(newest_->value()) : nlohmann::json();
    uploader_->set_status(std::move(status));
  }

  std::string backend() const { return fmt::format("cpu-{}", isa_name(engine_->isa())); }
  SamplingParams sampling() const {
    return {.temperature = assets_.spec.temperature, .top_k = assets_.spec.top_k, .top_p = assets_.spec.top_p};
  }

  ObjectStore& store_;
  const WorkerOptions& options_;
  EventSink& events_;
  const std::stop_token stop_;
  const Clock& clock_;
  const WorkerId id_;
  const std::string operator_;
  Retrier retrier_;
  GracePeriod grace_;
  Wish wish_;
  Courtesy courtesy_;
  std::optional<nanoseconds> looked_;
  nanoseconds computing_since_{0};  // the last rest
  std::int64_t kv_block_bytes_ = 0;
  std::int64_t resident_ = 0;  // at most, since the last event about a sweep; without KV blocks in use
  nanoseconds resident_seen_{0};
  bool limited_ = false;                 // in the present sweep: its speed says nothing about its size
  std::optional<OperatingPoint> point_;  // unless the number of groups is fixed

  RunAssets assets_;
  std::unique_ptr<WorkerCounter> counter_;
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<Subscriber> subscriber_;
  std::unique_ptr<ClaimKeeper> claims_;  // of a run with claims; outlives the uploader
  std::unique_ptr<Uploader> uploader_;
  std::optional<NextVersion> version_;  // that the engine holds; without weights
  std::optional<Version> newest_;       // that head was seen to name

  bool started_ = false;
  milliseconds patience_{0};  // of the next look at the hub
  std::string waits_for_;
  std::int64_t begun_ = 0;  // groups
  double tokens_per_second_ = 0;
};

}  // namespace

Result<WorkerReport> run_worker(ObjectStore& store, const WorkerOptions& options, EventSink& events,
                                std::stop_token stop, const Clock& clock) {
  if (options.refill && options.sweep_groups == 0) {
    return invalid_argument("worker: a sweep that is refilled needs a number of groups");
  }
  if (options.key == nullptr || options.sweep_groups < 0 || options.upload_queue < 1 || options.rows_per_call < 1) {
    return invalid_argument(fmt::format("worker: key {}, {} groups a sweep, an upload queue of {}, {} rows a call",
                                        options.key ? "given" : "missing", options.sweep_groups, options.upload_queue,
                                        options.rows_per_call));
  }
  // It becomes part of every group.
  const std::string& name = options.operator_name;
  if (!name.empty() && (name.find('/') != std::string::npos || name.size() > 128 || !check_key(name).ok())) {
    return invalid_argument(fmt::format("operator \"{}\": expected at most 128 of [A-Za-z0-9._-]", name));
  }
  return Worker(store, options, events, std::move(stop), clock).run();
}

}  // namespace flotilla
