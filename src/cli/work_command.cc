#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "base/log.h"
#include "base/priority.h"
#include "base/user_folders.h"
#include "cli/commands.h"
#include "cli/run_address.h"
#include "cli/stop_signals.h"
#include "cli/worker_allocator.h"
#include "config/config.h"
#include "config/run_config.h"
#include "rollout/machine_use.h"
#include "rollout/worker.h"
#include "rollout/worker_counter.h"
#include "sync/signing.h"
#include "telemetry/event_log.h"

namespace flotilla {
namespace {

constexpr std::chrono::seconds kSegmentAge{5};  // how late `flotilla show` may be

struct WorkOptions {
  std::string run;
  std::string learner;
  std::string name = "default";
  std::string config;
  std::vector<std::string> overrides;
};

Result<WorkConfig> read_config(const WorkOptions& options) {
  WorkConfig config;
  if (!options.config.empty()) {
    RunConfig run;  // its other sections are the learner's
    FLOTILLA_RETURN_IF_ERROR(load_config(run, options.config));
    config.worker = run.worker;
  }
  FLOTILLA_ASSIGN_OR_RETURN(const auto others, override_config(config, options.overrides));
  if (!others.empty()) {
    return invalid_argument(fmt::format("unknown argument '{}'; see flotilla work --help", others.front()));
  }
  FLOTILLA_RETURN_IF_ERROR(resolve_config(config));
  return config;
}

// Of all threads but the one that waits for signals, which is there already.
void take_priority(Politeness politeness) {
  if (politeness == Politeness::kGreedy) return;
  const Status lower = lower_priority(politeness == Politeness::kPolite ? Priority::kIdle : Priority::kLow);
  if (!lower.ok()) log_warning("worker", "{}", lower.to_string());
}

// Events go to a folder of the worker for this run and, segment by segment, to the hub.
Result<std::unique_ptr<EventLog>> open_log(ObjectStore& store, const HubLayout& layout,
                                           const std::filesystem::path& folder, const std::string& writer) {
  EventLogOptions log;
  log.folder = folder;
  log.writer = writer;
  log.segment_age = kSegmentAge;
  log.deliver = [&store, layout, writer](std::uint64_t number, ByteSpan bytes) -> Status {
    return store.put_if_absent(layout.events(writer, number), bytes).status();
  };
  return EventLog::open(std::move(log));
}

Status work(const WorkOptions& options) {
  use_worker_allocator();
  StopSignals signals;
  FLOTILLA_ASSIGN_OR_RETURN(const WorkConfig config, read_config(options));
  FLOTILLA_ASSIGN_OR_RETURN(const RunAddress address, RunAddress::parse(options.run));
  take_priority(config.worker.politeness);
  FLOTILLA_ASSIGN_OR_RETURN(const auto store, open_hub(address, false, signals.token()));
  WorkerOptions worker;
  worker.layout = address.layout();
  worker.learner_fingerprint = options.learner;
  FLOTILLA_ASSIGN_OR_RETURN(worker.key,
                            SigningKey::load_or_create(user_config_folder() / "workers" / (options.name + ".pem")));
  worker.operator_name = config.worker.operator_id;
  worker.cache_folder = user_cache_folder();
  worker.state_folder = user_state_folder() / "workers" / hub_folder_name(address.hub);
  worker.threads = config.worker.threads;
  worker.sweep_groups = config.worker.sweep_groups;
  worker.refill = config.worker.refill;
  worker.politeness = config.worker.politeness;
  auto reader = std::make_shared<MachineUseReader>();
  worker.machine_use = [reader](std::chrono::nanoseconds now) { return reader->look(now); };
  worker.memory_limit_bytes = config.worker.memory_limit_mib << 20;
  worker.upload_queue = config.worker.upload_queue;
  worker.poll = std::chrono::duration_cast<std::chrono::milliseconds>(config.worker.poll);
  const std::string id = worker_id(worker.key->public_key()).value();
  FLOTILLA_ASSIGN_OR_RETURN(
      const auto events,
      open_log(*store, worker.layout, worker.state_folder / "events" / address.owner / address.run / id, id));
  fmt::print("worker {} ({}) joins {}\n", id, options.name, address.text());
  std::fflush(stdout);
  FLOTILLA_ASSIGN_OR_RETURN(const WorkerReport report, run_worker(*store, worker, *events, signals.token()));
  fmt::print("worker {} ends ({}): {} groups uploaded, {} dropped\n", id, report.reason, report.groups, report.dropped);
  return ok_status();
}

// As `flotilla learn` prints it.
Status check_fingerprint(const std::string& text) {
  constexpr std::string_view kPrefix = "sha256:";
  constexpr std::size_t kDigits = 64;
  const bool right = text.starts_with(kPrefix) && text.size() == kPrefix.size() + kDigits &&
                     text.find_first_not_of("0123456789abcdef", kPrefix.size()) == std::string::npos;
  if (text.empty() || right) return ok_status();
  return invalid_argument(
      fmt::format("--learner '{}': expected sha256: and 64 hexadecimal digits, as flotilla learn prints them", text));
}

Status check_worker_name(const std::string& name) {
  if (name.empty() || name.find('/') != std::string::npos || name.front() == '.') {
    return invalid_argument(fmt::format("worker name '{}': expected a file name", name));
  }
  return ok_status();
}

}  // namespace

void add_work_command(CLI::App& app, Action& action) {
  CLI::App* command = app.add_subcommand("work", "Join a run: pull weights, generate groups of episodes, upload them");
  auto options = std::make_shared<WorkOptions>();
  command->add_option("RUN", options->run, "HUB/OWNER/RUN")->required();
  command->add_option(
      "--learner", options->learner,
      "Fingerprint of the learner's key, from the printed command; without it, whoever made the run is believed");
  command->add_option("--name", options->name, "Which of this user's workers this is; each has a key of its own")
      ->capture_default_str();
  command->add_option("--config", options->config, "A TOML file, of which [worker] counts: a run's run.toml too");
  WorkConfig defaults;
  for (const Section& section : schema_of(defaults)) {
    for (const Field& field : section.fields) {
      const std::string name = fmt::format("--{}.{}", section.name, field.name);
      command
          ->add_option_function<std::string>(
              name,
              [options, name](const std::string& value) {
                options->overrides.push_back(fmt::format("{}={}", name, value));
              },
              fmt::format("{} [{}]", field.help, value_text(field)))
          ->type_name("")
          ->group("Settings");
    }
  }
  command->footer(
      "A worker may join and leave at any time; Ctrl-C finishes the sweep under way if it is short, a second Ctrl-C "
      "ends at\n"
      "once.\n"
      "Example:\n"
      "  flotilla work /srv/hub/ada/demo --learner sha256:1f0c... --worker.threads 2 --worker.sweep_groups 8");
  command->allow_extras();  // read_config() says which setting was meant
  command->callback([&action, options, command] {
    for (const std::string& extra : command->remaining()) options->overrides.push_back(extra);
    action = [options]() -> Status {
      FLOTILLA_RETURN_IF_ERROR(check_worker_name(options->name));
      FLOTILLA_RETURN_IF_ERROR(check_fingerprint(options->learner));
      return work(*options);
    };
  });
}

}  // namespace flotilla
