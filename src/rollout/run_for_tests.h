#pragma once

#include <chrono>
#include <condition_variable>
#include <future>
#include <map>
#include <mutex>
#include <stop_token>
#include <string>
#include <vector>

#include "base/files.h"
#include "rollout/run_assets.h"
#include "rollout/toy_for_tests.h"
#include "rollout/worker.h"
#include "store/object_store.h"
#include "sync/publisher.h"
#include "sync/run_spec.h"
#include "sync/subscriber.h"
#include "telemetry/event_sink.h"

namespace flotilla {

// Keeps events and lets a test wait for them.
class WaitingSink final : public EventSink {
 public:
  void emit(Event event) override {
    const std::lock_guard lock(mutex_);
    events_.push_back(std::move(event));
    changed_.notify_all();
  }
  // False when `count` events of the kind do not come within a minute.
  bool wait_for(const std::string& kind, std::size_t count = 1) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::minutes(1), [&] { return of(kind).size() >= count; });
  }
  bool wait_for_reason(const std::string& text) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::minutes(1), [&] {
      const auto waits = of("worker.wait");
      return !waits.empty() && waits.back()["reason"].get<std::string>().find(text) != std::string::npos;
    });
  }
  std::vector<nlohmann::json> events(const std::string& kind) {
    const std::lock_guard lock(mutex_);
    return of(kind);
  }

 private:
  std::vector<nlohmann::json> of(const std::string& kind) const {
    std::vector<nlohmann::json> fields;
    for (const Event& event : events_) {
      if (event.kind == kind) fields.push_back(event.fields);
    }
    return fields;
  }
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Event> events_;
};

// A run of the toy in a hub in memory, with a learner that publishes when told to.
struct ToyRun {
  std::unique_ptr<ObjectStore> store = make_memory_store();
  HubLayout layout{"owner/run"};
  std::shared_ptr<const SigningKey> learner = SigningKey::generate().value();
  std::shared_ptr<const SigningKey> worker = SigningKey::generate().value();
  RunSpec spec;
  std::unique_ptr<Publisher> publisher;
  TemporaryFolder scratch;

  explicit ToyRun(const std::function<void(RunSpec&)>& change = [](RunSpec&) {}) {
    spec.run = layout.prefix;
    spec.seed = 99;
    spec.model_config = put_artifact(*store, layout, as_bytes(toy_model().description.to_config_json())).value();
    spec.tokenizer = put_artifact(*store, layout, as_bytes(toy_tokenizer()->to_json())).value();
    spec.environment = put_artifact(*store, layout, as_bytes("the toy's data")).value();
    spec.environment_name = "toy";
    spec.environment_digest = ToyEnvironment().digest();
    spec.group_size = 3;
    spec.learner_key = learner->public_key();
    change(spec);
    const std::string text = run_spec_to_json(spec, *learner);
    FLOTILLA_CHECK(store->put_if_absent(layout.run_spec(), as_bytes(text)).ok());
    publisher = Publisher::open(*store, layout, toy_model().description, learner, {}, null_event_sink()).value();
  }

  // Another state each time: version 0 is the toy model.
  Version publish(std::uint64_t step = 0) {
    GridState state = toy_model().state;
    state.tensors[0].q[0] = static_cast<std::int8_t>(published_);
    for (auto& q : state.tensors[1].vector_q) q = static_cast<std::int16_t>(q + 100 * published_);
    ++published_;
    return publisher->publish(state, step).value().version;
  }
  void want(std::int64_t groups, RunState state = RunState::kRunning) {
    FLOTILLA_CHECK(publisher->update_head(state, groups).ok());
  }

  static Result<std::unique_ptr<Environment>> open_toy(std::string_view name, ByteSpan, const std::filesystem::path&) {
    if (name != "toy") return invalid_argument("not the toy");
    return std::unique_ptr<Environment>(std::make_unique<ToyEnvironment>());
  }
  Result<RunAssets> assets() {
    return open_run_assets(*store, layout, fingerprint(learner->public_key()), scratch.path(), open_toy);
  }

 private:
  int published_ = 0;
};

// A worker on a thread of its own.
struct RunningWorker {
  RunningWorker() = default;
  RunningWorker(RunningWorker&&) = default;
  ~RunningWorker() { stop.request_stop(); }  // also where a test gives up

  std::stop_source stop;
  std::future<Result<WorkerReport>> result;
  Result<WorkerReport> end() {
    stop.request_stop();
    return result.get();
  }
};

}  // namespace flotilla
