#include "cli/demo_run.h"

#include <fmt/format.h>

#include <chrono>
#include <condition_variable>
#include <iostream>
#include <mutex>
#include <set>
#include <vector>

#include "base/user_folders.h"
#include "cli/child_process.h"
#include "cli/demo_config.h"
#include "cli/evaluation_subject.h"
#include "cli/run_events.h"
#include "cli/run_report.h"
#include "config/config.h"
#include "model/packaged_model.h"
#include "sync/head.h"
#include "sync/run_spec.h"
#include "telemetry/progress_line.h"

namespace flotilla {
namespace fs = std::filesystem;
namespace {

constexpr int kLearnerStarts = 4;                // a learner that keeps dying has a reason that a restart won't mend
constexpr std::chrono::milliseconds kLook{500};  // between two looks at processes and events
constexpr std::chrono::minutes kRunAppearsWithin{10};  // from the learner's start to run.json
constexpr std::chrono::minutes kFleetEndsWithin{2};    // from the end of the run

// out/demo/1, out/demo/2, ...: the first that is not there.
Result<fs::path> new_folder(const fs::path& out) {
  for (int number = 1;; ++number) {
    const fs::path folder = out / std::to_string(number);
    std::error_code error;
    fs::create_directories(out, error);
    if (error) return errno_status(error.value(), "create folder " + out.string());
    if (fs::create_directory(folder, error)) return folder;
    if (error) return errno_status(error.value(), "create folder " + folder.string());
  }
}

class Fleet {
 public:
  Fleet(const DemoRun& demo, ObjectStore& store)
      : demo_(demo), store_(store), events_(store, demo.address.layout()), progress_(std::cerr, inspect_terminal(2)) {}

  Result<Version> run(std::stop_token stop) {
    FLOTILLA_RETURN_IF_ERROR(start_learner());
    FLOTILLA_RETURN_IF_ERROR(wait_for_run(stop));
    FLOTILLA_RETURN_IF_ERROR(start_workers());
    std::mutex mutex;
    std::condition_variable_any wake;
    while (learner_) {
      FLOTILLA_RETURN_IF_ERROR(look(stop));
      std::unique_lock lock(mutex);
      wake.wait_for(lock, stop, kLook, [] { return false; });
    }
    FLOTILLA_RETURN_IF_ERROR(check_finished());
    // The fleet reads that the run is finished, ends its sweeps and goes.
    const auto deadline = system_clock().monotonic() + kFleetEndsWithin;
    for (ChildProcess& worker : workers_) {
      while (!worker.poll() && !stop.stop_requested() && system_clock().monotonic() < deadline) {
        std::unique_lock lock(mutex);
        wake.wait_for(lock, stop, kLook, [] { return false; });
      }
      worker.terminate();
      worker.wait();
    }
    show_events();
    if (stop.stop_requested()) return cancelled("stopped");
    if (summary_.publishes().empty()) return internal_error("the event log names no version");
    return Version(static_cast<std::uint64_t>(summary_.publishes().front().version));
  }

 private:
  std::string program(const char* name) const { return (program_folder() / name).string(); }
  fs::path log(const std::string& name) const { return demo_.folder / (name + ".log"); }

  Status start_learner() {
    ++learner_starts_;
    FLOTILLA_ASSIGN_OR_RETURN(ChildProcess child, ChildProcess::start({program("flotilla-learner"), "--config",
                                                                       (demo_.folder / "run.toml").string()},
                                                                      log("learner")));
    progress_.print(fmt::format("learner: process {}, log {}", child.pid(), log("learner").string()));
    learner_ = std::move(child);
    return ok_status();
  }

  Status wait_for_run(std::stop_token stop) {
    const auto deadline = system_clock().monotonic() + kRunAppearsWithin;
    std::mutex mutex;
    std::condition_variable_any wake;
    for (;;) {
      auto spec = fetch_run_spec(store_, demo_.address.layout(), "");
      if (spec.ok()) {
        fingerprint_ = fingerprint(spec->learner_key);
        return ok_status();
      }
      if (spec.status().code() != StatusCode::kNotFound) return std::move(spec).status();
      if (const auto end = learner_->poll()) {
        return internal_error(fmt::format("the learner ended with {} before the run began; see {}", end->text(),
                                          log("learner").string()));
      }
      if (system_clock().monotonic() > deadline)
        return deadline_exceeded("the learner did not make run.json; see " + log("learner").string());
      progress_.update("preparing model and environment");
      std::unique_lock lock(mutex);
      wake.wait_for(lock, stop, kLook, [] { return false; });
      if (stop.stop_requested()) return cancelled("stopped");
    }
  }

  std::vector<std::string> worker_command(const std::string& name) const {
    const WorkerSection& worker = demo_.config.worker;
    std::vector<std::string> command{
        program("flotilla"), "work", demo_.address.text(), "--learner", fingerprint_, "--name", name};
    const auto set = [&](const char* key, const std::string& value) {
      command.insert(command.end(), {std::string("--worker.") + key, value});
    };
    set("threads", std::to_string(worker.threads));
    set("sweep_groups", std::to_string(worker.sweep_groups));
    set("refill", worker.refill ? "true" : "false");
    set("politeness", std::string(enum_name(worker.politeness)));
    set("memory_limit_mib", std::to_string(worker.memory_limit_mib));
    set("poll_seconds", fmt::format("{}", worker.poll.count()));
    set("upload_queue", std::to_string(worker.upload_queue));
    if (!worker.operator_id.empty()) set("operator", worker.operator_id);
    return command;
  }

  Status start_workers() {
    for (int i = 1; i <= demo_.config.demo.workers; ++i) {
      const std::string name = fmt::format("demo-{}", i);
      FLOTILLA_ASSIGN_OR_RETURN(ChildProcess child, ChildProcess::start(worker_command(name), log(name)));
      progress_.print(fmt::format("worker {}: process {}, log {}", name, child.pid(), log(name).string()));
      workers_.push_back(std::move(child));
    }
    std::string join =
        fmt::format("{} work {} --learner {} --name NAME", program("flotilla"), demo_.address.text(), fingerprint_);
    progress_.print("another worker may join at any time, here or on a machine that shares the hub's folder:\n  " +
                    join);
    progress_.print(fmt::format("how the run stands: {} show {}", program("flotilla"), demo_.address.text()));
    return ok_status();
  }

  Status check_finished() {
    FLOTILLA_ASSIGN_OR_RETURN(const RunSpec spec, fetch_run_spec(store_, demo_.address.layout(), fingerprint_));
    FLOTILLA_ASSIGN_OR_RETURN(const Object object, store_.get(demo_.address.layout().head()));
    FLOTILLA_ASSIGN_OR_RETURN(const Head head, head_from_json(as_text(object.bytes), spec.learner_key));
    if (head.state == RunState::kFinished) return ok_status();
    return cancelled(fmt::format("the learner left before the run was finished; {} learn --config {} goes on with it",
                                 program("flotilla"), (demo_.folder / "run.toml").string()));
  }

  // Processes that ended, events that came.
  Status look(std::stop_token stop) {
    if (stop.stop_requested()) {
      progress_.print("stopping");
      learner_->terminate();
      for (ChildProcess& worker : workers_) worker.terminate();
      learner_->wait();
      return cancelled(fmt::format("stopped; {} goes on with the run",
                                   program("flotilla") + " learn --config " + (demo_.folder / "run.toml").string()));
    }
    for (std::size_t i = 0; i < workers_.size(); ++i) {
      const auto end = workers_[i].poll();
      if (!end || reported_.contains(i)) continue;
      reported_.insert(i);
      if (end->ok()) continue;  // the run is finished
      ++failed_workers_;
      progress_.print(fmt::format("worker demo-{} ended with {}; the run goes on without it", i + 1, end->text()));
    }
    if (failed_workers_ == workers_.size() && !learner_->poll()) {
      return internal_error(fmt::format("all workers have failed; see {}", log("demo-1").string()));
    }
    show_events();
    if (const auto end = learner_->poll()) {
      if (end->ok()) {
        learner_.reset();
      } else if (end->signal != 0 && learner_starts_ < kLearnerStarts) {
        progress_.print(fmt::format("the learner ended with {}; it is started again and resumes", end->text()));
        return start_learner();
      } else {
        return internal_error(fmt::format("the learner ended with {}; see {}", end->text(), log("learner").string()));
      }
    }
    return ok_status();
  }

  void show_events() {
    auto records = events_.poll();
    if (!records.ok()) {
      progress_.print("event log: " + records.status().message());
      return;
    }
    for (const std::string& problem : events_.take_problems()) progress_.print("event log: " + problem);
    for (const EventRecord& record : *records) {
      const std::size_t steps = summary_.steps().size();
      summary_.add(record);
      if (record.event.kind == "learner.resume") progress_.print("the learner resumed from its checkpoint");
      if (summary_.steps().size() > steps) progress_.print(progress_text(summary_));
    }
    progress_.update(progress_text(summary_) + time_left());
  }

  std::string time_left() {
    const double budget = demo_.config.learner.budget.count();
    if (summary_.publishes().empty() || budget <= 0) return {};
    const auto now = system_clock().monotonic();
    if (!rl_began_) rl_began_ = now;
    const double left = budget - std::chrono::duration<double>(now - *rl_began_).count();
    return left > 0 ? fmt::format(", {:.0f} s of RL left", left) : ", last step";
  }

  const DemoRun& demo_;
  ObjectStore& store_;
  RunEvents events_;
  RunSummary summary_;
  ProgressLine progress_;
  std::string fingerprint_;
  std::optional<ChildProcess> learner_;
  int learner_starts_ = 0;
  std::vector<ChildProcess> workers_;
  std::set<std::size_t> reported_;
  std::size_t failed_workers_ = 0;
  std::optional<std::chrono::nanoseconds> rl_began_;
};

}  // namespace

Result<DemoRun> prepare_demo(const fs::path& out, const std::vector<std::string>& overrides) {
  DemoRun demo;
  FLOTILLA_RETURN_IF_ERROR(parse_config(demo.config, kDemoConfig, "configs/demo.toml"));
  FLOTILLA_ASSIGN_OR_RETURN(const auto rest, override_config(demo.config, overrides));
  if (!rest.empty())
    return invalid_argument(fmt::format("demo: unexpected '{}'; expected --SECTION.KEY VALUE", rest.front()));
  if (!demo.config.run.hub.empty() || !demo.config.run.folder.empty()) {
    return invalid_argument("demo: [run] hub and folder lie in the demo's own folder; choose it with --out FOLDER");
  }
  if (demo.config.model.source.empty()) {
    FLOTILLA_ASSIGN_OR_RETURN(demo.config.model.source,
                              packaged_model().with_context("name a model with --model.source FILE"));
  }
  FLOTILLA_ASSIGN_OR_RETURN(const fs::path folder, new_folder(out));
  demo.folder = fs::absolute(folder).lexically_normal();
  demo.config.run.hub = (demo.folder / "hub").string();
  demo.config.run.folder = demo.folder / "learner";
  FLOTILLA_RETURN_IF_ERROR(resolve_config(demo.config));
  FLOTILLA_ASSIGN_OR_RETURN(demo.address, RunAddress::parse(demo.config.run.hub + "/" + demo.config.run.name));
  FLOTILLA_RETURN_IF_ERROR(write_file_atomically(demo.folder / "run.toml", config_toml(demo.config)));
  return demo;
}

Result<Version> run_demo_fleet(const DemoRun& demo, std::stop_token stop) {
  FLOTILLA_ASSIGN_OR_RETURN(const auto store, open_hub(demo.address, true));
  return Fleet(demo, *store).run(stop);
}

Result<DemoResult> evaluate_demo(ObjectStore& store, const DemoRun& demo, Version first, std::stop_token stop) {
  EvaluationRequest request;
  request.options.questions = demo.config.evaluation.questions;
  request.options.samples = demo.config.evaluation.samples;
  request.options.sampling.temperature = demo.config.evaluation.temperature;
  request.options.seed = demo.config.run.seed;
  request.threads = demo.config.evaluation.threads;
  const Terminal terminal = inspect_terminal(2);
  DemoResult result;
  FLOTILLA_ASSIGN_OR_RETURN(const EvaluationSubject before, open_run_version(store, demo.address, first));
  FLOTILLA_ASSIGN_OR_RETURN(result.before, evaluate_subject(before, request, terminal, stop));
  FLOTILLA_ASSIGN_OR_RETURN(const EvaluationSubject last, open_run_version(store, demo.address, std::nullopt));
  FLOTILLA_ASSIGN_OR_RETURN(result.after, evaluate_subject(last, request, terminal, stop));
  result.first = first;
  result.last = *last.version;
  FLOTILLA_ASSIGN_OR_RETURN(result.comparison, compare(result.before, result.after));
  return result;
}

}  // namespace flotilla
