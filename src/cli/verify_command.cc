#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <iostream>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/files.h"
#include "base/thread_pool.h"
#include "base/user_folders.h"
#include "cli/commands.h"
#include "cli/run_address.h"
#include "cli/stop_signals.h"
#include "rollout/group_file.h"
#include "rollout/sweep.h"
#include "rollout/verify.h"
#include "rollout/verify_speed.h"
#include "sync/subscriber.h"
#include "telemetry/progress_line.h"

namespace flotilla {
namespace {

struct VerifyOptions {
  std::string run;
  std::vector<std::string> groups;
  int threads = 0;
  bool speed = false;
  int repeat = 5;
};

constexpr std::int64_t kBlocks = 512;           // of the KV pool, unless one episode may need more
constexpr std::int64_t kTokensTogether = 5000;  // that are verified in one go: some twenty slices of a forward call
constexpr std::size_t kGroupsMeasured = 8;
constexpr std::size_t kVersionsHeld = 3;  // of the weights: those of a group whose weights changed under it

// A group file on a folder hub lies at HUB/OWNER/RUN/rollouts/VERSION/WORKER/GROUP: it names its run.
Result<RunAddress> run_of_path(const std::string& path) {
  std::error_code error;
  std::filesystem::path folder = std::filesystem::absolute(path, error).lexically_normal();
  for (int level = 0; level < 3; ++level) folder = folder.parent_path();
  if (folder.filename() != "rollouts") {
    return invalid_argument(fmt::format("{} does not lie on a hub; name its run with --run HUB/OWNER/RUN", path));
  }
  return RunAddress::parse(folder.parent_path().string());
}

Result<RunAddress> run_of_paths(const std::vector<std::string>& paths) {
  FLOTILLA_ASSIGN_OR_RETURN(RunAddress first, run_of_path(paths.front()));
  for (const std::string& path : paths) {
    FLOTILLA_ASSIGN_OR_RETURN(const RunAddress other, run_of_path(path));
    if (other.text() != first.text()) {
      return invalid_argument(
          fmt::format("{} is of the run {}, not of {}; verify one run at a time", path, other.text(), first.text()));
    }
  }
  return first;
}

// Errors of the hub and of this machine, not of a group.
bool ends_verification(StatusCode code) {
  return code == StatusCode::kUnavailable || code == StatusCode::kDeadlineExceeded ||
         code == StatusCode::kResourceExhausted || code == StatusCode::kCancelled || code == StatusCode::kInternal;
}

// What to check: the files named, or the keys of all groups of the run.
Result<std::vector<std::string>> list_groups(const VerifyOptions& options, ObjectStore& store,
                                             const HubLayout& layout) {
  if (!options.groups.empty()) return options.groups;
  FLOTILLA_ASSIGN_OR_RETURN(const auto objects, list_all(store, layout.rollouts()));
  if (objects.empty()) return not_found("the run has no groups yet");
  std::vector<std::string> keys;
  for (const ObjectInfo& object : objects) keys.push_back(object.key);
  return keys;
}

Result<Bytes> read_group(const VerifyOptions& options, ObjectStore& store, const std::string& name) {
  if (!options.groups.empty()) return read_file(name);
  FLOTILLA_ASSIGN_OR_RETURN(Object object, store.get(name));
  return std::move(object.bytes);
}

using ReadGroup = std::function<Result<Bytes>(const std::string&)>;

// What --speed measures.
Result<std::vector<Group>> groups_to_measure(const std::vector<std::string>& names, const ReadGroup& read) {
  // Enough to find some of one version.
  std::vector<Bytes> files;
  for (std::size_t i = 0; i < std::min(names.size(), 4 * kGroupsMeasured); ++i) {
    FLOTILLA_ASSIGN_OR_RETURN(files.emplace_back(), read(names[i]));
  }
  return groups_of_one_version(files, kGroupsMeasured);
}

// KV blocks with which the sweep that makes the groups computes nothing twice.
std::int64_t sweep_blocks(std::span<const Group> groups) {
  std::int64_t blocks = 0;
  for (const Group& group : groups) {
    blocks += group.prompt_tokens / kBlockTokens + 2;
    for (const Episode& episode : group.episodes) {
      blocks += (std::ssize(episode.tokens) - group.prompt_tokens) / kBlockTokens + 2;
    }
  }
  return 2 * blocks;  // a sweep leaves room for the next block of each sequence
}

Status measure(const VerifyOptions& options, const RunAssets& assets, Engine& engine,
               const GroupVerifier::Weights& weights, std::span<const Group> groups) {
  ProgressLine progress(std::cerr, inspect_terminal(2));
  const auto speed = measure_verification(assets, engine, weights, groups, options.repeat, [&](int round) {
    progress.update(fmt::format("measuring: {}/{}", round, options.repeat));
  });
  progress.finish();
  FLOTILLA_RETURN_IF_ERROR(speed.status());
  fmt::print("version {}, {}\n{}", groups.front().oldest_version().value(), isa_name(engine.isa()),
             verify_speed_text(*speed));
  return ok_status();
}

Status verify(const VerifyOptions& options) {
  StopSignals signals;
  if (options.run.empty() && options.groups.empty()) {
    return invalid_argument("name group files, or a run with --run HUB/OWNER/RUN to check all of its groups");
  }
  FLOTILLA_ASSIGN_OR_RETURN(const RunAddress address,
                            options.run.empty() ? run_of_paths(options.groups) : RunAddress::parse(options.run));
  FLOTILLA_ASSIGN_OR_RETURN(const auto store, open_hub(address));
  const HubLayout layout = address.layout();
  FLOTILLA_ASSIGN_OR_RETURN(const RunAssets assets, open_run_assets(*store, layout, "", user_cache_folder()));
  EngineOptions engine_options;
  engine_options.threads = options.threads > 0 ? options.threads : core_count();
  engine_options.kv_blocks = std::max(kBlocks, 2 * sweep_blocks_max(assets.rules, assets.rules.context / 2, 1, 1));
  FLOTILLA_ASSIGN_OR_RETURN(const std::vector<std::string> names, list_groups(options, *store, layout));
  const auto read = [&](const std::string& name) { return read_group(options, *store, name); };
  std::vector<Group> measured;
  if (options.speed) {
    FLOTILLA_ASSIGN_OR_RETURN(measured, groups_to_measure(names, read));
    engine_options.kv_blocks = std::max(engine_options.kv_blocks, sweep_blocks(measured));
  }
  FLOTILLA_ASSIGN_OR_RETURN(const auto engine, Engine::create(assets.description, engine_options));
  const auto subscriber = Subscriber::create(*store, layout, assets.description, assets.spec.learner_key,
                                             null_event_sink(), {.threads = engine_options.threads});
  std::map<Version, PulledVersion> versions;  // the newest ones fetched: groups come in the order of their versions
  const GroupVerifier::Weights weights = [&](Version version) -> Result<PulledVersion> {
    if (const auto held = versions.find(version); held != versions.end()) return held->second;
    FLOTILLA_ASSIGN_OR_RETURN(PulledVersion pulled, subscriber->fetch(version));
    if (versions.size() == kVersionsHeld) versions.erase(versions.begin());
    versions.emplace(version, pulled);
    return pulled;
  };
  if (options.speed) return measure(options, assets, *engine, weights, measured);

  GroupVerifier verifier(assets, *engine, weights);
  ProgressLine progress(std::cerr, inspect_terminal(2));
  const auto begin = system_clock().monotonic();
  std::size_t done = 0;
  std::size_t refused = 0;
  std::size_t unchecked = 0;
  std::int64_t sampled = 0;
  std::int64_t computed = 0;
  const auto judge = [&](const std::string& name, const Status& status, bool at_fault) {
    ++done;
    if (status.ok()) return;
    ++(at_fault ? refused : unchecked);
    progress.print(fmt::format("{}: {}{}", name, at_fault ? "" : "cannot be checked: ", status.message()));
  };
  for (std::size_t next = 0; next < names.size();) {
    if (signals.stopped()) return cancelled(fmt::format("stopped after {} of {} groups", done, names.size()));
    progress.update(fmt::format("verifying: {}/{} groups, {} refused", done, names.size(), refused));
    std::vector<Group> groups;
    std::vector<std::string> of;
    for (std::int64_t tokens = 0; next < names.size() && tokens < kTokensTogether; ++next) {
      const auto bytes = read(names[next]);
      if (bytes.status().code() == StatusCode::kNotFound) {
        judge(names[next], bytes.status(), false);  // removed since the listing
        continue;
      }
      FLOTILLA_RETURN_IF_ERROR(bytes.status());
      auto group = parse_group(*bytes);
      if (!group.ok()) {
        // A file of another format is nobody's fault.
        judge(names[next], group.status(), group.status().code() != StatusCode::kFailedPrecondition);
        continue;
      }
      for (const Episode& episode : group->episodes) tokens += std::ssize(episode.tokens) - group->prompt_tokens;
      tokens += group->prompt_tokens;
      groups.push_back(*std::move(group));
      of.push_back(names[next]);
    }
    const auto results = verifier.verify(groups);
    for (std::size_t i = 0; i < groups.size(); ++i) {
      const Status& status = results[i].status();
      if (ends_verification(status.code())) return status.with_context(of[i]);
      // Only what the file says counts against its worker; a version that is gone or an inexact engine does not.
      judge(of[i], status, status.code() == StatusCode::kInvalidArgument);
      if (!results[i].ok()) continue;
      sampled += results[i]->model_tokens;
      computed += results[i]->prompt_tokens + results[i]->model_tokens + results[i]->environment_tokens;
    }
  }
  progress.finish();
  const double seconds = std::chrono::duration<double>(system_clock().monotonic() - begin).count();
  fmt::print(
      "{} groups, {} accepted, {} refused{}; {} sampled tokens replayed in {:.1f} s, {:.0f} tokens/s with prompts and "
      "observations\n",
      names.size(), names.size() - refused - unchecked, refused,
      unchecked > 0 ? fmt::format(", {} that cannot be checked", unchecked) : "", sampled, seconds,
      static_cast<double>(computed) / seconds);
  if (refused > 0) return data_loss(fmt::format("{} of {} groups refused", refused, names.size()));
  if (unchecked > 0) return failed_precondition(fmt::format("{} of {} groups not checked", unchecked, names.size()));
  return ok_status();
}

}  // namespace

void add_verify_command(CLI::App& app, Action& action) {
  CLI::App* command = app.add_subcommand(
      "verify", "Replay groups: assignment, environment and every logprob, bit for bit; name the first difference");
  auto options = std::make_shared<VerifyOptions>();
  command->add_option("GROUP", options->groups, "Group files; none: all groups of the run");
  command->add_option("--run", options->run, "HUB/OWNER/RUN; not needed for files that lie on a folder hub");
  command->add_option("--threads", options->threads, "Threads of the engine; 0: one a core")
      ->capture_default_str()
      ->check(CLI::Range(0, 1024));
  command->add_flag(
      "--speed", options->speed,
      "Measure instead: verification of some groups beside prefill with the same readouts, the sweep that "
      "made them, and the decoding of one sequence");
  command->add_option("--repeat", options->repeat, "With --speed: rounds; medians are printed")
      ->capture_default_str()
      ->check(CLI::Range(1, 1000));
  command->footer(
      "Exits with 1 when a group is refused or cannot be checked.\n"
      "Examples:\n"
      "  flotilla verify --run out/demo/1/hub/demo/dictionary\n"
      "  flotilla verify --run out/demo/1/hub/demo/dictionary --speed\n"
      "  flotilla verify out/demo/1/hub/demo/dictionary/rollouts/0000000003/*/*");
  command->callback([&action, options] { action = [options] { return verify(*options); }; });
}

}  // namespace flotilla
