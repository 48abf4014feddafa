#include "learn/learner_loop.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include <fmt/format.h>

#include "base/log.h"
#include "base/philox.h"
#include "base/thread_pool.h"
#include "learn/advantages.h"
#include "rollout/group_file.h"

namespace flotilla {
namespace {

using nlohmann::json;
using std::chrono::nanoseconds;
using Request = LearnerControl::Request;

constexpr nanoseconds kRetryFirst = std::chrono::seconds(1);
constexpr nanoseconds kRetryLast = std::chrono::seconds(60);
constexpr nanoseconds kPatience = std::chrono::seconds(30);  // of a wait, until the log says so again

double seconds(nanoseconds time) { return std::chrono::duration<double>(time).count(); }

nanoseconds jittered(nanoseconds pause, PhiloxStream& random) {
  return nanoseconds(static_cast<std::int64_t>(static_cast<double>(pause.count()) * (0.5 + random.uniform() / 2)));
}

bool may_pass(const Status& status) {
  return status.code() == StatusCode::kUnavailable || status.code() == StatusCode::kDeadlineExceeded ||
         status.code() == StatusCode::kResourceExhausted;
}

ReplayLimits limits_of(const LearnerSettings& settings) {
  const LearnerSection& learner = settings.learner;
  ReplayLimits limits{.batch_groups = learner.batch_groups,
                      .wanted_groups = learner.wanted_groups,
                      .max_staleness = learner.max_staleness,
                      .max_reuse = learner.max_reuse,
                      .sequential = learner.mode == LearnerMode::kSequential};
  // Room for all versions that may be used, several times over; a fleet that sends more is not heeding `wanted`.
  limits.capacity = std::max<std::int64_t>(1024, 8 * (limits.batch_groups + limits.wanted_groups));
  return limits;
}

bool all_zero(const std::vector<float>& advantages) {
  return std::all_of(advantages.begin(), advantages.end(), [](float value) { return value == 0; });
}

double mean_reward(const Group& group) {
  double sum = 0;
  for (const Episode& episode : group.episodes) sum += episode.reward;
  return sum / static_cast<double>(group.episodes.size());
}

std::vector<float> advantages_of(const Group& group) {
  std::vector<double> rewards;
  for (const Episode& episode : group.episodes) rewards.push_back(episode.reward);
  return advantages(rewards);
}

std::int64_t model_tokens(const Group& group) {
  std::int64_t count = 0;
  for (const Episode& episode : group.episodes) {
    count += std::count(episode.sources.begin(), episode.sources.end(), TokenSource::kModel);
  }
  return count;
}

}  // namespace

LearnerLoop::LearnerLoop(LearnerSettings settings, LearnerParts parts)
    : settings_(std::move(settings)), parts_(std::move(parts)), buffer_(limits_of(settings_)) {
  const WarmupSection& warmup = settings_.warmup;
  warmup_steps_ = static_cast<std::uint64_t>((warmup.demonstrations + warmup.batch - 1) / warmup.batch);
  progress_.run = settings_.run;
}

Status LearnerLoop::run() {
  FLOTILLA_RETURN_IF_ERROR(resume());
  Status status = warm_up();
  const auto goes_on = [&] { return status.ok() && !asked_to_leave() && !progress_.finished; };
  if (goes_on()) status = begin_versions();
  if (goes_on()) status = train();
  if (status.code() == StatusCode::kCancelled && asked_to_leave()) status = ok_status();
  if (status.ok() && !progress_.finished) status = end("leave");
  if (!status.ok()) tell_end(status.to_string());
  return status;
}

void LearnerLoop::tell_end(std::string_view reason) {
  emit("learner.finish", {{"step", progress_.steps},
                          {"version", newest_ ? newest_->version.value() : 0},
                          {"reason", reason},
                          {"seconds", rl_seconds()}});
}

Status LearnerLoop::resume() {
  FLOTILLA_ASSIGN_OR_RETURN(newest_, parts_.sink.newest());
  const LearnerSection& learner = settings_.learner;
  emit("learner.start", {{"run", settings_.run},
                         {"mode", enum_name(learner.mode)},
                         {"generation", newest_ ? newest_->generation.value() : 1},
                         {"batch_groups", learner.batch_groups},
                         {"group_size", settings_.group_size},
                         {"max_staleness", learner.max_staleness},
                         {"max_reuse", learner.max_reuse},
                         {"steps", learner.steps},
                         {"budget_seconds", learner.budget.count()}});
  FLOTILLA_ASSIGN_OR_RETURN(auto memory, parts_.checkpoints.load(settings_.run, parts_.trainer.state()));
  if (!memory) return ok_status();
  FLOTILLA_ASSIGN_OR_RETURN(buffer_, ReplayBuffer::restore(limits_of(settings_), memory->replay));
  for (const ReplayGroup& record : buffer_.groups()) {
    const auto file = memory->groups.find(record.id.value());
    if (file == memory->groups.end())
      return data_loss(fmt::format("group {} is not in the checkpoint", record.id.value()));
    FLOTILLA_ASSIGN_OR_RETURN(Group group, parse_group(file->second).with_context("group of a checkpoint"));
    std::vector<float> advantages = advantages_of(group);
    held_.emplace(record.id, Held{std::move(group), std::move(file->second), std::move(advantages)});
  }
  progress_ = memory->progress;
  progress_.finished = false;
  version0_ = memory->version0;
  grid_ = memory->grid;
  parts_.trainer.set_optimizer_steps(progress_.optimizer_steps);
  emit("learner.resume", {{"step", progress_.steps},
                          {"version", newest_ ? newest_->version.value() + 1 : 0},
                          {"groups", buffer_.size()},
                          {"seconds", progress_.seconds}});
  log_info("learn", "resumed after {} warm-up and {} RL steps", progress_.warmup_steps, progress_.steps);
  return ok_status();
}

Status LearnerLoop::warm_up() {
  if (version0_) return ok_status();
  const WarmupSection& warmup = settings_.warmup;
  AdamWOptions adamw{.learning_rate = warmup.learning_rate};
  while (progress_.warmup_steps < warmup_steps_) {
    if (parts_.control.paused()) {
      if (asked_to_leave()) return cancelled("asked to leave");
      if (parts_.control.request() == Request::kFinish) return end("stop");
      report("paused");
      parts_.wait(settings_.poll);
      continue;
    }
    const nanoseconds began = parts_.clock.monotonic();
    std::vector<TrainingSequence> batch;
    const std::uint64_t first = progress_.warmup_steps * static_cast<std::uint64_t>(warmup.batch);
    const std::uint64_t last = std::min<std::uint64_t>(first + warmup.batch, warmup.demonstrations);
    for (std::uint64_t i = first; i < last; ++i) {
      FLOTILLA_ASSIGN_OR_RETURN(batch.emplace_back(), parts_.demonstration(i));
    }
    batch = share_beginnings(batch, settings_.learner.micro_batch_tokens);
    report("");
    FLOTILLA_ASSIGN_OR_RETURN(const ImitationReport done, parts_.trainer.imitation_step(batch, adamw, [this] {
      return asked_to_leave() ? cancelled("asked to leave") : ok_status();
    }));
    ++progress_.warmup_steps;
    emit("learner.warmup_step", {{"step", progress_.warmup_steps},
                                 {"steps", warmup_steps_},
                                 {"loss", done.loss},
                                 {"tokens", done.tokens},
                                 {"seconds", seconds(parts_.clock.monotonic() - began)}});
    // The end of the warm-up has a checkpoint of its own: another just before it would save little.
    const auto every = static_cast<std::uint64_t>(settings_.learner.checkpoint_every);
    if (progress_.warmup_steps % every == 0 && progress_.warmup_steps + every / 2 < warmup_steps_) {
      FLOTILLA_RETURN_IF_ERROR(checkpoint());
    }
    if (asked_to_leave()) return cancelled("asked to leave");
  }
  return ok_status();
}

Status LearnerLoop::begin_versions() {
  std::vector<const float*> masters;
  if (!version0_) {
    ModelWeights weights{parts_.trainer.description(), {}};
    for (const auto& master : parts_.trainer.state().masters)
      weights.tensors.emplace_back(master.begin(), master.end());
    FLOTILLA_ASSIGN_OR_RETURN(GridState grid, make_grid(weights));
    version0_ = std::make_shared<const GridState>(std::move(grid));
    grid_ = version0_;
    parts_.trainer.reset_optimizer();
    // Before anyone sees it: whoever resumes after this point has the same version 0.
    FLOTILLA_RETURN_IF_ERROR(checkpoint());
  }
  parts_.trainer.set_grid(grid_);
  if (settings_.loss.kl > 0) FLOTILLA_RETURN_IF_ERROR(parts_.trainer.set_reference(version0_.get()));
  // A head that is missing, or that another lineage of this run has moved on: the fleet has to get these weights.
  const bool there = newest_ && newest_->state == state_digest(parts_.trainer.description(), *grid_, core_count());
  // Left while the version before the one that was due was still on its way.
  const bool due =
      progress_.steps >= progress_.published_steps + static_cast<std::uint64_t>(settings_.learner.publish_every);
  if (there && !due) return ok_status();
  FLOTILLA_RETURN_IF_ERROR(publish());
  return await_publication();
}

Status LearnerLoop::train() {
  const LearnerSection& learner = settings_.learner;
  rl_began_ = parts_.clock.monotonic();
  bool waiting = false;
  nanoseconds waiting_since{0}, next_word{0};
  double last_end = rl_seconds(), last_round = 0;  // of a step with its waiting
  while (true) {
    if (learner.steps > 0 && progress_.steps >= static_cast<std::uint64_t>(learner.steps)) return end("steps");
    // At the step's end that is nearest to the budget: steps take long on small machines.
    if (learner.budget.count() > 0 && rl_seconds() + last_round / 2 >= learner.budget.count()) return end("budget");
    if (parts_.control.request() == Request::kFinish) return end("stop");
    if (asked_to_leave()) return ok_status();
    if (parts_.control.paused()) {
      progress_.seconds = rl_seconds();  // time does not count while paused
      rl_began_.reset();
      waiting = false;
      FLOTILLA_RETURN_IF_ERROR(look_around());
      report("paused");
      parts_.wait(settings_.poll);
      continue;
    }
    if (!rl_began_) rl_began_ = parts_.clock.monotonic();
    FLOTILLA_RETURN_IF_ERROR(look_around());
    expire();
    const nanoseconds now = parts_.clock.monotonic();
    const auto batch = buffer_.draw(newest_or_coming());
    if (batch) {
      const double waited = waiting ? seconds(now - waiting_since) : 0;
      waiting = false;
      FLOTILLA_RETURN_IF_ERROR(step(*batch, waited));
      last_round = rl_seconds() - std::exchange(last_end, rl_seconds());
      continue;
    }
    if (!waiting) {
      waiting = true;
      waiting_since = now;
      next_word = now + kPatience;
    }
    const std::string what = fmt::format("groups: {} of {} are there, {} wanted", buffer_.eligible(newest_or_coming()),
                                         learner.batch_groups, wanted());
    report(what);
    if (now >= next_word) {
      log_info("learn", "waiting for {} s for {}", static_cast<std::int64_t>(seconds(now - waiting_since)), what);
      next_word = now + kPatience;
    }
    parts_.wait(std::max(settings_.poll, look_pause_));
  }
}

Status LearnerLoop::step(const std::vector<GroupId>& ids, double seconds_wait) {
  const Version published = newest_->version, version = newest_or_coming();
  const std::uint64_t number = progress_.steps + 1;
  Batch batch;
  std::int64_t never_used = 0, zero_signal = 0;
  std::vector<std::int32_t> reuse;
  std::vector<std::int64_t> staleness(static_cast<std::size_t>(settings_.learner.max_staleness) + 1);
  std::vector<std::string> names;
  double rewards = 0;
  for (const GroupId& id : ids) {
    const Held& held = held_.at(id);
    batch.groups.push_back(&held.group);
    batch.advantages.push_back(held.advantages);
    const ReplayGroup& record = buffer_.at(id);
    never_used += record.reuse == 0;
    zero_signal += all_zero(held.advantages);
    reuse.push_back(record.reuse + 1);
    ++staleness.at(static_cast<std::size_t>(buffer_.staleness(id, version)));
    names.push_back(id.value());
    rewards += mean_reward(held.group);
  }
  emit("learner.batch", {{"step", number},
                         {"eligible", buffer_.eligible(version)},
                         {"never_used", never_used},
                         {"seconds_wait", seconds_wait}});
  report("");

  const LossSection& loss = settings_.loss;
  const OptimizerSection& optimizer = settings_.optimizer;
  // N of the fixed token budget (Dr. GRPO): the gate, the masks and the lengths never change it.
  const double denominator = static_cast<double>(ids.size()) * settings_.group_size * loss.token_budget;
  const PolicyStepOptions options{.loss = {.gate_delta = loss.gate_delta,
                                           .dual_clip = loss.dual_clip,
                                           .positive_clip = loss.positive_clip,
                                           .kl = loss.kl},
                                  .denominator = denominator,
                                  .mask_truncated = loss.truncated == TruncatedEpisodes::kMask};
  const AdamWOptions adamw{.learning_rate = optimizer.learning_rate,
                           .beta1 = optimizer.beta1,
                           .beta2 = optimizer.beta2,
                           .epsilon = optimizer.epsilon,
                           .weight_decay = optimizer.weight_decay,
                           .clip_norm = optimizer.clip_norm};
  const nanoseconds began = parts_.clock.monotonic();
  FLOTILLA_ASSIGN_OR_RETURN(
      const PolicyStepReport done,
      parts_.trainer.policy_step(batch.groups, batch.advantages, options, adamw, [this] { return pause(); }));
  const double train = seconds(parts_.clock.monotonic() - began);
  for (const GroupId& id : buffer_.consume(ids)) held_.erase(id);
  progress_.steps = number;
  emit("learner.step", {{"step", number},
                        {"version", published.value()},
                        {"groups", names},
                        {"reuse", reuse},
                        {"staleness", staleness},
                        {"reward_mean", rewards / static_cast<double>(ids.size())},
                        {"zero_signal", zero_signal},
                        {"loss", done.loss},
                        {"kl", done.kl},
                        {"gradient_norm", done.gradient_norm},
                        {"tokens", done.computed},
                        {"model_tokens", done.tokens},
                        {"gated", done.gated_positive + done.gated_negative},
                        {"gated_positive", done.gated_positive},
                        {"gated_negative", done.gated_negative},
                        {"past_gap", done.past_delta},
                        {"past_ratio", done.past_band},
                        {"ratio_above_2", done.ratio_above_2},
                        {"ratio_below_half", done.ratio_below_half},
                        {"ratio_max", done.ratio_max},
                        {"gap_mean", done.logprob_difference},
                        {"total_variation", done.total_variation},
                        {"entropy", done.entropy},
                        {"seconds_wait", seconds_wait},
                        {"seconds_train", train},
                        {"tokens_per_second", train > 0 ? static_cast<double>(done.computed) / train : 0}});
  const auto due = [number](std::int32_t every) { return number % static_cast<std::uint64_t>(every) == 0; };
  if (due(settings_.learner.publish_every)) FLOTILLA_RETURN_IF_ERROR(publish());
  if (due(settings_.learner.checkpoint_every)) {
    // A full disk is no reason to stop training: the older checkpoints are still there.
    if (const Status status = checkpoint(); !status.ok()) log_error("learn", "no checkpoint: {}", status.to_string());
  }
  return ok_status();
}

Status LearnerLoop::end(std::string_view reason) {
  progress_.seconds = rl_seconds();
  rl_began_.reset();
  const bool finishes = reason != "leave";
  if (finishes) {
    if (progress_.published_steps != progress_.steps) FLOTILLA_RETURN_IF_ERROR(publish());
    FLOTILLA_RETURN_IF_ERROR(await_publication());
  } else {
    leave_publication();
  }
  progress_.finished = finishes;
  // The fleet must hear of the end even when the disk is full.
  Status saved = checkpoint();
  if (newest_ && finishes) {
    const Status told = insist("tell the fleet", [&] { return parts_.sink.update(RunState::kFinished, 0); });
    progress_.finished = told.ok();  // asked to leave before the fleet heard of it: the run goes on later
    FLOTILLA_RETURN_IF_ERROR(told);
  } else if (newest_) {
    const Status told = parts_.sink.update(RunState::kPaused, 0);
    if (!told.ok()) log_warning("learn", "the fleet was not told of the pause: {}", told.to_string());
  }
  if (saved.ok()) tell_end(reason);
  return saved;
}

Status LearnerLoop::look_around() {
  FLOTILLA_RETURN_IF_ERROR(follow_publication());
  const nanoseconds now = parts_.clock.monotonic();
  if (now < next_look_) return ok_status();
  const auto reach = static_cast<std::uint64_t>(settings_.learner.max_staleness);
  const Version newest = newest_or_coming();
  const Version oldest(newest.value() - std::min(reach, newest.value()));
  Status problem;
  auto poll = parts_.source.poll(oldest, newest_->version,
                                 [this](const GroupId& id) { return buffer_.knows(id) || early_.contains(id); });
  if (poll.ok()) {
    for (const RefusedGroup& refused : poll->refused) {
      emit("learner.dropped_group", {{"group", refused.name}, {"worker", refused.worker}, {"reason", refused.reason}});
      log_warning("learn", "group {} of worker {} refused: {}", refused.name, refused.worker, refused.reason);
    }
    for (ReceivedGroup& received : poll->groups) take(std::move(received));
  } else {
    problem = poll.status();
  }
  const bool paused = parts_.control.paused();
  if (problem.ok()) {
    problem = parts_.sink.update(paused ? RunState::kPaused : RunState::kRunning, paused ? 0 : wanted());
  }
  if (problem.ok()) {
    look_pause_ = settings_.poll;
  } else if (may_pass(problem)) {
    look_pause_ = std::clamp(2 * look_pause_, kRetryFirst, kRetryLast);
    emit("hub.error", {{"operation", "look for groups"}, {"key", settings_.run}, {"message", problem.to_string()}});
    log_warning("learn", "{}; looking again in {} s", problem.to_string(), seconds(look_pause_));
  } else {
    return problem;
  }
  next_look_ = parts_.clock.monotonic() + look_pause_;
  return ok_status();
}

void LearnerLoop::take(ReceivedGroup received) {
  const Group& group = received.group;
  std::vector<float> advantages = advantages_of(group);
  ReplayGroup record{.id = group.identity.group,
                     .worker = group.identity.worker,
                     .counter = group.identity.counter,
                     .oldest = group.oldest_version(),
                     .newest = group.oldest_version()};
  for (const Episode& episode : group.episodes) {
    for (const VersionSpan& span : episode.spans) record.newest = std::max(record.newest, span.version);
  }
  // The fleet may hear of a version before its learner does.
  const bool early = publication_ && record.newest > newest_->version;
  if (early && std::ssize(early_) < buffer_.limits().capacity) {
    early_.emplace(record.id, std::move(received));
    return;
  }
  std::string reason;
  if (settings_.loss.drop_zero_signal && all_zero(advantages)) {
    reason = "no signal: all rewards are equal";
  } else if (early) {
    reason = admission_name(Admission::kFull);
  } else if (const Admission admission = buffer_.admit(record, newest_or_coming()); admission != Admission::kAdmitted) {
    reason = admission_name(admission);
  }
  if (!reason.empty()) {
    emit("learner.dropped_group", {{"group", record.id.value()},
                                   {"worker", record.worker.value()},
                                   {"reason", reason},
                                   {"staleness", newest_or_coming().value() - record.oldest.value()}});
    return;
  }
  emit("learner.group", {{"group", record.id.value()},
                         {"worker", record.worker.value()},
                         {"version", record.oldest.value()},
                         {"reward_mean", mean_reward(group)},
                         {"model_tokens", model_tokens(group)}});
  held_.emplace(record.id, Held{std::move(received.group), std::move(received.file), std::move(advantages)});
}

void LearnerLoop::expire() {
  const Version newest = newest_or_coming();
  for (const ReplayGroup& record : buffer_.expire(newest)) {
    held_.erase(record.id);
    emit("learner.dropped_group", {{"group", record.id.value()},
                                   {"worker", record.worker.value()},
                                   {"reason", "stale"},
                                   {"staleness", newest.value() - record.oldest.value()}});
  }
}

Status LearnerLoop::pause() {
  if (asked_to_leave()) return cancelled("asked to leave");
  return look_around();
}

Status LearnerLoop::publish() {
  FLOTILLA_RETURN_IF_ERROR(await_publication());
  const nanoseconds began = parts_.clock.monotonic();
  const ModelDescription& description = parts_.trainer.description();
  std::vector<const float*> masters;
  for (const auto& master : parts_.trainer.state().masters) masters.push_back(master.data());
  RegridReport report;
  if (progress_.steps > 0) {
    FLOTILLA_ASSIGN_OR_RETURN(GridState grid, regrid(description, *grid_, masters, &report, core_count()));
    grid_ = std::make_shared<const GridState>(std::move(grid));
  } else {
    grid_ = version0_;
  }
  progress_.published_steps = progress_.steps;
  parts_.trainer.set_grid(grid_);
  publication_ = Publication{.state = grid_,
                             .steps = progress_.steps,
                             .grid = report,
                             .began = began,
                             .pause = kRetryFirst,
                             .random = PhiloxStream(progress_.steps, 0)};
  parts_.sink.begin(grid_, progress_.steps);
  publication_->seconds_held = seconds(parts_.clock.monotonic() - began);
  return settings_.learner.mode == LearnerMode::kSequential ? await_publication() : ok_status();
}

Status LearnerLoop::follow_publication() {
  if (!publication_) return ok_status();
  if (publication_->next_attempt) {
    if (parts_.clock.monotonic() < *publication_->next_attempt) return ok_status();
    publication_->next_attempt.reset();
    parts_.sink.begin(publication_->state, publication_->steps);
  }
  const auto attempt = parts_.sink.finished();
  if (!attempt) return ok_status();
  if (attempt->ok()) {
    published(**attempt);
    return ok_status();
  }
  if (!may_pass(attempt->status())) return attempt->status().with_context("publish");
  const nanoseconds pause = jittered(publication_->pause, publication_->random);
  tell_failure("publish", attempt->status(), pause);
  publication_->next_attempt = parts_.clock.monotonic() + pause;
  publication_->pause = std::min(2 * publication_->pause, kRetryLast);
  return ok_status();
}

void LearnerLoop::published(const PublishReport& report) {
  const Publication done = *std::exchange(publication_, std::nullopt);
  newest_ = SnapshotVersion{report.version, report.state, newest_ ? newest_->generation : Generation(1)};
  next_look_ = nanoseconds(0);
  emit("learner.publish", {{"version", report.version.value()},
                           {"step", done.steps},
                           {"state", report.state.to_hex()},
                           {"delta_bytes", report.delta_bytes},
                           {"skip_bytes", report.skip_bytes},
                           {"anchor_bytes", report.anchor_bytes},
                           {"changed", report.changed},
                           {"total", report.total},
                           {"rescaled_groups", done.grid.rescaled_groups},
                           {"rescaled_bytes", done.grid.rescaled_bytes},
                           {"seconds", seconds(parts_.clock.monotonic() - done.began)},
                           {"seconds_held", done.seconds_held},
                           {"seconds_encode", report.seconds_encode},
                           {"seconds_upload", report.seconds_upload}});
  seconds_held_ += done.seconds_held;
  log_info("learn", "version {} after step {}: {} bytes, {} groups rescaled ({} bytes); training held for {:.2f} s",
           report.version.value(), done.steps, report.delta_bytes + report.skip_bytes + report.anchor_bytes,
           done.grid.rescaled_groups, done.grid.rescaled_bytes, done.seconds_held);
  for (auto& [id, group] : std::exchange(early_, {})) take(std::move(group));
}

Status LearnerLoop::await_publication() {
  if (!publication_) return ok_status();
  const nanoseconds began = parts_.clock.monotonic();
  const double held = publication_->seconds_held;
  while (true) {
    publication_->seconds_held = held + seconds(parts_.clock.monotonic() - began);
    FLOTILLA_RETURN_IF_ERROR(follow_publication());
    if (!publication_) return ok_status();
    if (asked_to_leave()) return cancelled("asked to leave");
    report("the hub: publish");
    const auto attempt = publication_->next_attempt;
    parts_.wait(attempt ? *attempt - parts_.clock.monotonic() : settings_.poll);
  }
}

void LearnerLoop::leave_publication() {
  Status status;
  while (status.ok() && publication_ && !publication_->next_attempt) {
    status = follow_publication();
    if (status.ok() && publication_ && !publication_->next_attempt) parts_.wait(settings_.poll);
  }
  if (!status.ok()) log_warning("learn", "left with a version on its way: {}", status.to_string());
}

Version LearnerLoop::newest_or_coming() const { return Version(newest_->version.value() + (publication_ ? 1 : 0)); }

std::int64_t LearnerLoop::wanted() const {
  return std::max<std::int64_t>(0, buffer_.wanted(newest_or_coming()) - std::ssize(early_));
}

void LearnerLoop::tell_failure(const std::string& what, const Status& status, nanoseconds pause) {
  emit("hub.error", {{"operation", what}, {"key", settings_.run}, {"message", status.to_string()}});
  log_warning("learn", "{}: {}; trying again in {:.1f} s", what, status.to_string(), seconds(pause));
}

Status LearnerLoop::insist(const std::string& what, const std::function<Status()>& action) {
  PhiloxStream random(progress_.steps, 0);
  nanoseconds wait = kRetryFirst;
  while (true) {
    const Status status = action();
    if (status.ok() || !may_pass(status)) return status.ok() ? status : status.with_context(what);
    const nanoseconds pause = jittered(wait, random);
    tell_failure(what, status, pause);
    report("the hub: " + what);
    parts_.wait(pause);
    if (asked_to_leave()) return cancelled("asked to leave");
    wait = std::min(2 * wait, kRetryLast);
  }
}

Status LearnerLoop::checkpoint() {
  const nanoseconds began = parts_.clock.monotonic();
  FLOTILLA_RETURN_IF_ERROR(parts_.flush_events());
  if (rl_began_) {
    progress_.seconds = rl_seconds();
    rl_began_ = parts_.clock.monotonic();
  }
  progress_.optimizer_steps = parts_.trainer.optimizer_steps();
  LearnerMemory memory{
      .progress = progress_, .version0 = version0_, .grid = grid_, .replay = buffer_.serialize(), .groups = {}};
  for (const auto& [id, held] : held_) memory.groups.emplace(id.value(), held.file);
  FLOTILLA_ASSIGN_OR_RETURN(const std::uint64_t bytes, parts_.checkpoints.save(memory, parts_.trainer.state()));
  emit("learner.checkpoint",
       {{"step", progress_.steps}, {"bytes", bytes}, {"seconds", seconds(parts_.clock.monotonic() - began)}});
  return ok_status();
}

bool LearnerLoop::asked_to_leave() const { return parts_.control.request() == Request::kLeave; }

double LearnerLoop::rl_seconds() const {
  return progress_.seconds + (rl_began_ ? seconds(parts_.clock.monotonic() - *rl_began_) : 0);
}

void LearnerLoop::report(const std::string& waiting_for) {
  json status{{"run", settings_.run},
              {"phase", version0_ ? "rl" : "warmup"},
              {"warmup_step", progress_.warmup_steps},
              {"warmup_steps", warmup_steps_},
              {"step", progress_.steps},
              {"steps", settings_.learner.steps},
              {"seconds", rl_seconds()},
              {"budget_seconds", settings_.learner.budget.count()},
              {"waiting_for", waiting_for}};
  if (newest_) {
    status["version"] = newest_->version.value();
    status["publishing"] = publication_.has_value();
    status["seconds_held"] = seconds_held_;
    status["eligible"] = buffer_.eligible(newest_or_coming());
    status["wanted"] = wanted();
  }
  parts_.control.set_status(std::move(status));
}

void LearnerLoop::emit(const char* kind, json fields) { parts_.events.emit({kind, std::move(fields)}); }

}  // namespace flotilla
