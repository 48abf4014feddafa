#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <algorithm>
#include <filesystem>
#include <iostream>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/files.h"
#include "base/user_folders.h"
#include "cli/commands.h"
#include "cli/run_address.h"
#include "cli/stop_signals.h"
#include "rollout/group_file.h"
#include "rollout/sweep.h"
#include "rollout/verify.h"
#include "sync/subscriber.h"
#include "telemetry/progress_line.h"

namespace flotilla {
namespace {

struct VerifyOptions {
  std::string run;
  std::vector<std::string> groups;
  int threads = 0;
};

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
  engine_options.threads =
      options.threads > 0 ? options.threads : static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  engine_options.kv_blocks = sweep_blocks_max(assets.rules, assets.rules.context / 2, 1, 1) * 2;
  FLOTILLA_ASSIGN_OR_RETURN(const auto engine, Engine::create(assets.description, engine_options));
  const auto subscriber =
      Subscriber::create(*store, layout, assets.description, assets.spec.learner_key, null_event_sink());
  std::map<Version, PulledVersion> versions;  // the last one fetched: groups come in the order of their versions
  GroupVerifier verifier(assets, *engine, [&](Version version) -> Result<PulledVersion> {
    if (const auto held = versions.find(version); held != versions.end()) return held->second;
    FLOTILLA_ASSIGN_OR_RETURN(PulledVersion pulled, subscriber->fetch(version));
    versions.clear();
    versions.emplace(version, pulled);
    return pulled;
  });

  FLOTILLA_ASSIGN_OR_RETURN(const std::vector<std::string> names, list_groups(options, *store, layout));
  ProgressLine progress(std::cerr, inspect_terminal(2));
  const auto begin = system_clock().monotonic();
  std::size_t done = 0;
  std::size_t refused = 0;
  std::size_t unchecked = 0;
  std::int64_t tokens = 0;
  for (const std::string& name : names) {
    if (signals.stopped()) return cancelled(fmt::format("stopped after {} of {} groups", done, names.size()));
    progress.update(fmt::format("verifying: {}/{} groups, {} refused", done, names.size(), refused));
    FLOTILLA_ASSIGN_OR_RETURN(const Bytes bytes, read_group(options, *store, name));
    auto group = parse_group(bytes);
    Status status = group.status();
    if (group.ok()) {
      const auto report = verifier.verify(*group);
      if (report.ok()) tokens += report->model_tokens;
      status = report.status();
    }
    ++done;
    if (status.ok()) continue;
    if (group.ok() && ends_verification(status.code())) return status.with_context(name);
    // Only what the file says counts against its worker; a version that is gone or an inexact engine does not.
    const bool at_fault = !group.ok() || status.code() == StatusCode::kInvalidArgument;
    ++(at_fault ? refused : unchecked);
    progress.print(fmt::format("{}: {}{}", name, at_fault ? "" : "cannot be checked: ", status.message()));
  }
  progress.finish();
  const double seconds = std::chrono::duration<double>(system_clock().monotonic() - begin).count();
  fmt::print("{} groups, {} accepted, {} refused{}; {} sampled tokens replayed in {:.1f} s\n", names.size(),
             names.size() - refused - unchecked, refused,
             unchecked > 0 ? fmt::format(", {} that cannot be checked", unchecked) : "", tokens, seconds);
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
  command->footer(
      "Exits with 1 when a group is refused or cannot be checked.\n"
      "Examples:\n"
      "  flotilla verify --run out/demo/1/hub/demo/dictionary\n"
      "  flotilla verify out/demo/1/hub/demo/dictionary/rollouts/0000000003/*/*");
  command->callback([&action, options] { action = [options] { return verify(*options); }; });
}

}  // namespace flotilla
