#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <filesystem>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "base/user_folders.h"
#include "cli/commands.h"
#include "cli/learner_folder.h"
#include "cli/run_address.h"
#include "cli/stop_signals.h"
#include "cli/subject_address.h"
#include "config/config.h"
#include "config/run_config.h"
#include "learn/learner_program.h"
#include "learn/retention_keeper.h"
#include "learn/run_lineage.h"
#include "rollout/run_assets.h"
#include "sync/head_writer.h"
#include "sync/run_spec.h"

namespace flotilla {
namespace {

namespace fs = std::filesystem;

struct RunOptions {
  std::string run;
  std::string fork;
  std::string folder;
  std::string config;
  std::vector<std::string> overrides;
  bool dry_run = false;
};

constexpr double kMiB = 1 << 20;

// A run, or with a version one of its versions; a model file is none.
Result<SubjectAddress> run_at(const std::string& text) {
  FLOTILLA_ASSIGN_OR_RETURN(SubjectAddress subject, SubjectAddress::parse(text));
  if (subject.model.empty()) return subject;
  return invalid_argument(fmt::format("'{}' is a model, not a run: expected HUB/OWNER/RUN@VERSION", text));
}

Result<RunSource> open_source(ObjectStore& store, const RunAddress& address) {
  FLOTILLA_ASSIGN_OR_RETURN(
      const RunModel model,
      open_run_model(store, address.layout(), "", user_cache_folder()).with_context("run " + address.text()));
  return RunSource{store, model.spec, model.description};
}

Result<Head> read_head(ObjectStore& store, const HubLayout& layout, const PublicKey& learner) {
  FLOTILLA_ASSIGN_OR_RETURN(const Object object, store.get(layout.head()));
  return head_from_json(as_text(object.bytes), learner);
}

Status no_learner_at_work(const fs::path& folder) {
  const Status asked = ask_learner(folder, "status");
  if (asked.code() == StatusCode::kUnavailable || asked.code() == StatusCode::kNotFound) return ok_status();
  return failed_precondition(
      fmt::format("a learner is at work in {}; flotilla stop --leave ends it first", folder.string()));
}

// A learner that was killed left a head that asks for groups.
Status pause_head(const RunAddress& address) {
  FLOTILLA_ASSIGN_OR_RETURN(const auto store, open_hub(address));
  const HubLayout layout = address.layout();
  FLOTILLA_ASSIGN_OR_RETURN(const RunSpec spec, fetch_run_spec(*store, layout, ""));
  const auto head = read_head(*store, layout, spec.learner_key);
  if (head.status().code() == StatusCode::kNotFound) return ok_status();
  FLOTILLA_RETURN_IF_ERROR(head.status());
  if (head->state != RunState::kRunning) return ok_status();
  FLOTILLA_ASSIGN_OR_RETURN(auto key, load_learner_key(spec.learner_key));
  FLOTILLA_ASSIGN_OR_RETURN(HeadWriter writer, HeadWriter::take_over(*store, layout, std::move(key)));
  return writer.write({.version = {}, .state = RunState::kPaused, .wanted = 0});
}

Status pause(const RunOptions& options) {
  FLOTILLA_ASSIGN_OR_RETURN(const RunAddress address, RunAddress::parse(options.run));
  FLOTILLA_ASSIGN_OR_RETURN(const fs::path folder, learner_folder(address, options.folder));
  const Status asked = ask_learner(folder, "pause");
  if (asked.ok()) {
    fmt::print("{}: the learner takes no step after the one under way, and workers wait\n", address.text());
    return ok_status();
  }
  if (asked.code() != StatusCode::kUnavailable) return asked;
  FLOTILLA_RETURN_IF_ERROR(pause_head(address).with_context(address.text()));
  FLOTILLA_RETURN_IF_ERROR(set_paused(folder, true));
  fmt::print("{}: no learner is at work; workers wait, and a learner that starts takes no step\n", address.text());
  return ok_status();
}

Status resume(const RunOptions& options) {
  FLOTILLA_ASSIGN_OR_RETURN(const RunAddress address, RunAddress::parse(options.run));
  FLOTILLA_ASSIGN_OR_RETURN(const fs::path folder, learner_folder(address, options.folder));
  const Status asked = ask_learner(folder, "resume");
  if (asked.ok()) {
    fmt::print("{}: the learner goes on\n", address.text());
    return ok_status();
  }
  if (asked.code() != StatusCode::kUnavailable) return asked;
  FLOTILLA_RETURN_IF_ERROR(set_paused(folder, false));
  fmt::print("{}: not paused any more; flotilla learn --config {} goes on with it\n", address.text(),
             (folder / "run.toml").string());
  return ok_status();
}

// The configuration named, or of the learner on this machine.
Result<RunConfig> config_of(const RunOptions& options, const RunAddress& address) {
  fs::path file = options.config;
  if (file.empty()) {
    FLOTILLA_ASSIGN_OR_RETURN(
        const fs::path folder,
        learner_folder(address, options.folder).with_context("the run's configuration (--config FILE) is needed"));
    file = folder / "run.toml";
  }
  RunConfig config;
  FLOTILLA_RETURN_IF_ERROR(load_config(config, file));
  FLOTILLA_ASSIGN_OR_RETURN(const auto others, override_config(config, options.overrides));
  if (!others.empty()) return invalid_argument(fmt::format("unknown argument '{}'; see --help", others.front()));
  return config;
}

Status roll_back(const RunOptions& options) {
  FLOTILLA_ASSIGN_OR_RETURN(const SubjectAddress subject, run_at(options.run));
  if (!subject.version) return invalid_argument("which version? HUB/OWNER/RUN@VERSION");
  const RunAddress& address = subject.run;
  FLOTILLA_ASSIGN_OR_RETURN(const fs::path folder, learner_folder(address, options.folder));
  FLOTILLA_RETURN_IF_ERROR(no_learner_at_work(folder));
  FLOTILLA_ASSIGN_OR_RETURN(const auto store, open_hub(address));
  FLOTILLA_ASSIGN_OR_RETURN(const RunSource run, open_source(*store, address));
  FLOTILLA_ASSIGN_OR_RETURN(auto key, load_learner_key(run.spec.learner_key));
  FLOTILLA_ASSIGN_OR_RETURN(const Rollback done,
                            roll_back(run, std::move(key), folder, *subject.version, null_event_sink()));
  fmt::print("{}: version {} has the state of version {}, after step {}; head was at version {}\n", address.text(),
             done.published.value(), subject.version->value(), done.step, done.from.value());
  fmt::print("{}", done.whole
                       ? "masters and optimizer are those of its checkpoint\n"
                       : "no checkpoint has it: weights came back from the hub, masters are the grid's values, the "
                         "optimizer begins anew\n");
  if (!done.set_aside.empty()) {
    fmt::print("{} later checkpoints are set aside in {} (.abandoned)\n", done.set_aside.size(),
               (folder / "checkpoints").string());
  }
  const fs::path config = folder / "run.toml";
  std::error_code error;
  fmt::print("flotilla learn {} goes on\n", fs::exists(config, error)
                                                ? "--config " + config.string()
                                                : "with the run's configuration and --run.folder " + folder.string());
  return ok_status();
}

Status fork(const RunOptions& options) {
  FLOTILLA_ASSIGN_OR_RETURN(const SubjectAddress subject, run_at(options.run));
  FLOTILLA_ASSIGN_OR_RETURN(const RunAddress target, RunAddress::parse(options.fork));
  RunOptions of_source = options;
  of_source.folder.clear();
  FLOTILLA_ASSIGN_OR_RETURN(RunConfig config, config_of(of_source, subject.run));
  config.run.hub = target.hub;
  config.run.name = target.owner + "/" + target.run;
  config.run.folder = options.folder;
  FLOTILLA_RETURN_IF_ERROR(resolve_config(config));
  FLOTILLA_RETURN_IF_ERROR(no_learner_at_work(config.run.folder));

  FLOTILLA_ASSIGN_OR_RETURN(const auto store, open_hub(subject.run));
  FLOTILLA_ASSIGN_OR_RETURN(const RunSource source, open_source(*store, subject.run));
  if (config.environment.name != source.spec.environment_name) {
    return invalid_argument(fmt::format("environment.name: {} has {}, the configuration {}", subject.run.text(),
                                        source.spec.environment_name, config.environment.name));
  }
  Version version;
  if (subject.version) {
    version = *subject.version;
  } else {
    FLOTILLA_ASSIGN_OR_RETURN(const Head head, read_head(*store, subject.run.layout(), source.spec.learner_key));
    version = head.version;
  }
  const auto source_folder = learner_folder(subject.run, "");  // without it there are weights only
  FLOTILLA_ASSIGN_OR_RETURN(const auto target_store, open_hub(target, true));
  FLOTILLA_ASSIGN_OR_RETURN(auto key, load_or_create_learner_key());
  const std::string print = fingerprint(key->public_key());
  FLOTILLA_ASSIGN_OR_RETURN(const Fork done, fork_run(source, version, source_folder.ok() ? *source_folder : fs::path(),
                                                      *target_store, config, std::move(key), null_event_sink()));
  fmt::print("{}: version 0 is version {} of {}, after its step {}; learner {}\n", target.text(), version.value(),
             subject.run.text(), done.step, print);
  fmt::print("{}", done.whole
                       ? "carried: weights, and masters and optimizer of a checkpoint\n"
                       : "carried: weights; no checkpoint has this version, so masters are the grid's values and the "
                         "optimizer begins anew\n");
  fmt::print("flotilla learn --config {} goes on\n", (config.run.folder / "run.toml").string());
  return ok_status();
}

Status clean(const RunOptions& options) {
  StopSignals signals;
  FLOTILLA_ASSIGN_OR_RETURN(const RunAddress address, RunAddress::parse(options.run));
  FLOTILLA_ASSIGN_OR_RETURN(RunConfig config, config_of(options, address));
  FLOTILLA_RETURN_IF_ERROR(resolve_config(config));
  FLOTILLA_ASSIGN_OR_RETURN(const auto store, open_hub(address, false, signals.token()));
  FLOTILLA_ASSIGN_OR_RETURN(const RunSpec spec, fetch_run_spec(*store, address.layout(), ""));
  RunRetention retention(*store, address.layout(), spec.learner_key);
  FLOTILLA_ASSIGN_OR_RETURN(const RetentionPlan plan,
                            retention.plan(retention_rules(config)).with_context(address.text()));
  if (options.dry_run) {
    for (const ObjectInfo& object : plan.remove) fmt::print("{}\n", object.key);
  }
  fmt::print("{} {} groups, {} versions and {} claims: {} objects, {:.1f} MiB; {:.1f} MiB stay, with {} versions\n",
             options.dry_run ? "would remove" : "removing", plan.groups, plan.versions, plan.claims, plan.remove.size(),
             static_cast<double>(plan.remove_bytes) / kMiB, static_cast<double>(plan.kept_bytes) / kMiB,
             plan.kept.size());
  if (options.dry_run) return ok_status();
  const auto removed = retention.remove(plan, std::numeric_limits<std::size_t>::max(), signals.token());
  if (removed.status.ok()) return ok_status();
  return removed.status.with_context(
      fmt::format("{} of {} objects are removed; the next gc goes on", removed.objects, plan.remove.size()));
}

using Command = Status (*)(const RunOptions&);

struct Subcommand {
  CLI::App* app;
  std::shared_ptr<RunOptions> options;
};

Subcommand add(CLI::App* run, Action& action, const char* name, const char* help, const char* operand, Command command,
               const char* footer) {
  CLI::App* app = run->add_subcommand(name, help);
  auto options = std::make_shared<RunOptions>();
  app->add_option("RUN", options->run, operand)->required();
  app->footer(footer);
  app->callback([&action, app, options, command] {
    for (const std::string& extra : app->remaining()) options->overrides.push_back(extra);
    action = [options, command] { return command(*options); };
  });
  return {app, std::move(options)};
}

constexpr const char* kFolder =
    "The learner's folder ([run] folder); default: of the learner last started for this run";

}  // namespace

void add_run_command(CLI::App& app, Action& action) {
  CLI::App* run = app.add_subcommand("run", "Pause, resume, roll back, fork and clean up runs");
  run->require_subcommand(1);
  run->footer("Example:\n  flotilla run pause /srv/hub/ada/demo");

  const auto paused =
      add(run, action, "pause", "Let the learner take no more steps and the workers wait", "HUB/OWNER/RUN", pause,
          "On the learner's machine. It lasts until resume, over restarts of the learner.\n"
          "Example:\n  flotilla run pause /srv/hub/ada/demo");
  paused.app->add_option("--folder", paused.options->folder, kFolder);

  const auto resumed = add(run, action, "resume", "Go on with a run that was paused", "HUB/OWNER/RUN", resume,
                           "On the learner's machine.\nExample:\n  flotilla run resume /srv/hub/ada/demo");
  resumed.app->add_option("--folder", resumed.options->folder, kFolder);

  const auto rolled =
      add(run, action, "rollback", "Let a run go on from an earlier version", "HUB/OWNER/RUN@VERSION", roll_back,
          "On the learner's machine, while no learner is at work. The state is published again under the next number; "
          "what\n"
          "later versions made is not trained on. Masters and optimizer come from the checkpoint of that version, if\n"
          "there is one; later checkpoints are set aside.\n"
          "Example:\n  flotilla run rollback /srv/hub/ada/demo@12");
  rolled.app->add_option("--folder", rolled.options->folder, kFolder);

  const auto forked = add(
      run, action, "fork", "Begin a new run from a version of another", "HUB/OWNER/RUN[@VERSION]", fork,
      "The new run has its own run.json, signed with this user's key, artifacts, and version 0. Steps, budget and\n"
      "groups begin at nothing; masters and optimizer are carried where a checkpoint here has the version. Settings\n"
      "are those of the learner's run.toml on this machine, or of --config, and can be changed with\n"
      "--SECTION.KEY VALUE.\n"
      "Examples:\n"
      "  flotilla run fork /srv/hub/ada/demo@12 /srv/hub/ada/again\n"
      "  flotilla run fork /srv/hub/ada/demo /srv/hub/ada/hotter --folder runs/hotter --rollout.temperature 1.2");
  forked.app->add_option("NEW", forked.options->fork, "HUB/OWNER/RUN of the new run")->required();
  forked.app->add_option("--folder", forked.options->folder, "The new learner's folder; default: .flotilla/OWNER/RUN");
  forked.app->add_option("--config", forked.options->config,
                         "Settings to begin with, instead of the learner's run.toml");
  forked.app->allow_extras();

  const auto cleaned =
      add(run, action, "gc", "Remove what a run does not need any more from its hub", "HUB/OWNER/RUN", clean,
          "The learner does the same beside its training ([retention] of its configuration). It may be interrupted at\n"
          "any time. A hub server lets a learner's token remove, and no worker's.\n"
          "Examples:\n"
          "  flotilla run gc /srv/hub/ada/demo --dry-run\n"
          "  flotilla run gc s3://bucket/ada/demo --config run.toml --retention.groups_seconds 3600");
  cleaned.app->add_flag("--dry-run", cleaned.options->dry_run, "Only list what would go");
  cleaned.app->add_option("--folder", cleaned.options->folder, kFolder);
  cleaned.app->add_option("--config", cleaned.options->config,
                          "The run's configuration; default: run.toml of the learner's folder");
  cleaned.app->allow_extras();
}

}  // namespace flotilla
