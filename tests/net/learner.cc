// A learner without training: publishes versions that differ by chance, and takes what workers send. For tests and
// benchmarks of the network.
//
//   net_learner HUB OWNER/RUN --model MODEL [--every-ms N] [--changed SHARE] [--versions N] [--wanted N] [--group N]
//
// Prints a line of JSON for each version, group and refusal. Versions go out until there are so many or the line
// "finish" comes on standard input; then workers are told that the run has finished. After the end of standard input it
// takes what is there and ends.
#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>
#include <CLI/CLI.hpp>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <set>
#include <string>
#include <thread>

#include "base/clock.h"
#include "base/files.h"
#include "base/log.h"
#include "base/philox.h"
#include "learn/hub_rollout_source.h"
#include "model/tokenizer.h"
#include "store/open_store.h"
#include "sync/publisher.h"
#include "sync/store_access.h"
#include "sync/subscriber.h"
#include "telemetry/event_sink.h"

namespace flotilla {
namespace {

using std::chrono::milliseconds;

struct Options {
  std::string hub;
  std::string run;
  std::string model;
  std::int64_t every_ms = 1000;
  double changed = 0.005;  // of the integers of matrices
  std::uint64_t versions = 0;
  std::int64_t wanted = 64;
  int group = 4;
};

void print(nlohmann::json line) {
  line["time_ms"] = system_clock().wall().count();
  fmt::print("{}\n", line.dump());
  std::fflush(stdout);
}

// Steps of one by chance, at about `share` of the places.
void change(GridState& state, double share, PhiloxStream& random) {
  for (GridTensor& tensor : state.tensors) {
    const auto gap = [&] { return static_cast<std::size_t>(std::log(1 - random.uniform()) / std::log1p(-share)); };
    for (std::size_t i = gap(); i < tensor.q.size(); i += 1 + gap()) {
      std::int8_t& q = tensor.q[i];
      q = static_cast<std::int8_t>(q == kMatrixLimit || (q > -kMatrixLimit && random.below(2) == 0) ? q - 1 : q + 1);
    }
  }
}

// What comes on standard input, without waiting.
class Commands {
 public:
  bool ended = false;
  bool finish = false;

  void look() {
    pollfd input{STDIN_FILENO, POLLIN, 0};
    while (!ended && ::poll(&input, 1, 0) > 0) {
      std::array<char, 256> text;
      const auto got = ::read(STDIN_FILENO, text.data(), text.size());
      ended = got <= 0;
      if (!ended) text_.append(text.data(), static_cast<std::size_t>(got));
    }
    finish = ended || text_.find("finish\n") != text_.npos;
  }

 private:
  std::string text_;
};

// A bad network is what this is for: as long as an operation may pass, it is tried again.
template <typename Operation>
auto persist(const Operation& operation) {
  while (true) {
    auto result = operation();
    const Status status = [&] {
      if constexpr (std::is_same_v<decltype(result), Status>) {
        return result;
      } else {
        return result.status();
      }
    }();
    if (!may_pass(status)) return result;
    log_warning("learner", "{}", status.to_string());
    std::this_thread::sleep_for(milliseconds(100));
  }
}

Result<RunSpec> publish_run(ObjectStore& store, const HubLayout& layout, const Model& model, const SigningKey& key,
                            const Options& options, ByteSpan corpus, const Environment& environment) {
  RunSpec spec;
  spec.run = layout.prefix;
  spec.seed = 1;
  const std::string config = model.weights.description.to_config_json();
  const std::string tokenizer = model.tokenizer->to_json();
  for (const auto& [bytes, digest] : {std::pair{as_bytes(config), &spec.model_config},
                                      {as_bytes(tokenizer), &spec.tokenizer},
                                      {corpus, &spec.environment}}) {
    FLOTILLA_ASSIGN_OR_RETURN(*digest, persist([&] { return put_artifact(store, layout, bytes); }));
  }
  spec.environment_name = environment.name();
  spec.environment_digest = environment.digest();
  spec.group_size = options.group;
  spec.swap = WeightSwap::kKeep;
  spec.learner_key = key.public_key();
  FLOTILLA_RETURN_IF_ERROR(persist([&] { return publish_run_spec(store, layout, spec, key); }));
  return spec;
}

class StandIn {
 public:
  StandIn(Publisher& publisher, HubRolloutSource& source) : publisher_(publisher), source_(source) {}

  Status publish(const GridState& state, std::uint64_t step) {
    FLOTILLA_ASSIGN_OR_RETURN(const PublishReport report, persist([&] { return publisher_.publish(state, step); }));
    print({{"version", report.version.value()},
           {"delta_bytes", report.delta_bytes},
           {"anchor_bytes", report.anchor_bytes},
           {"changed", report.changed},
           {"total", report.total}});
    return ok_status();
  }

  Status tell(RunState state, std::int64_t wanted) {
    return persist([&] { return publisher_.update_head(state, wanted); });
  }

  // How many groups were new.
  Result<std::size_t> take() {
    const std::optional<Head> head = publisher_.head();
    if (!head) return 0;
    FLOTILLA_ASSIGN_OR_RETURN(const RolloutPoll poll, persist([&] {
                                return source_.poll(Version(0), head->version, [](const GroupId&) { return false; });
                              }));
    for (const ReceivedGroup& group : poll.groups) {
      print({{"group", group.group.identity.group.value()}, {"worker", group.group.identity.worker.value()}});
    }
    for (const RefusedGroup& group : poll.refused) print({{"refused", group.name}, {"reason", group.reason}});
    return poll.groups.size();
  }

 private:
  Publisher& publisher_;
  HubRolloutSource& source_;
};

Status learn(const Options& options) {
  const HubLayout layout{options.run};
  FLOTILLA_ASSIGN_OR_RETURN(const Model model, load_model(options.model));
  const ModelDescription& description = model.weights.description;
  FLOTILLA_ASSIGN_OR_RETURN(GridState state, make_grid(model.weights));
  const TemporaryFolder scratch;
  FLOTILLA_ASSIGN_OR_RETURN(const Bytes corpus, build_environment_artifact("dictionary", "/usr/share/wordnet"));
  FLOTILLA_ASSIGN_OR_RETURN(const auto environment, open_environment("dictionary", corpus, scratch.path()));
  FLOTILLA_ASSIGN_OR_RETURN(const auto key, SigningKey::generate());
  FLOTILLA_ASSIGN_OR_RETURN(const auto store, open_store(options.hub, true));
  FLOTILLA_ASSIGN_OR_RETURN(const RunSpec spec,
                            publish_run(*store, layout, model, *key, options, corpus, *environment));
  HubVersions versions(*store, layout, spec.learner_key);
  HubRolloutSource source(*store, layout,
                          {.run = &spec,
                           .environment = environment.get(),
                           .tokenizer = model.tokenizer.get(),
                           .tokenizer_digest = model.tokenizer->digest(),
                           .corpus = spec.environment,
                           .vocabulary = description.vocabulary,
                           .context = description.context},
                          versions);
  FLOTILLA_ASSIGN_OR_RETURN(const auto publisher, persist([&] {
                              return Publisher::open(*store, layout, description, key, {}, null_event_sink());
                            }));
  StandIn learner(*publisher, source);
  print({{"learner", fingerprint(spec.learner_key)}});
  FLOTILLA_RETURN_IF_ERROR(learner.tell(RunState::kRunning, options.wanted));

  Commands commands;
  PhiloxStream random(1, 0);
  const auto every = milliseconds(options.every_ms);
  auto next = std::chrono::steady_clock::now();
  for (std::uint64_t version = 0; !commands.finish; commands.look()) {
    if ((options.versions == 0 || version < options.versions) && std::chrono::steady_clock::now() >= next) {
      next = std::chrono::steady_clock::now() + every;
      if (version > 0) change(state, options.changed, random);
      FLOTILLA_RETURN_IF_ERROR(learner.publish(state, version++));
    }
    FLOTILLA_RETURN_IF_ERROR(learner.take().status());
    std::this_thread::sleep_for(std::clamp<std::chrono::nanoseconds>(next - std::chrono::steady_clock::now(),
                                                                     milliseconds(10), milliseconds(200)));
  }
  FLOTILLA_RETURN_IF_ERROR(learner.tell(RunState::kFinished, 0));
  print({{"finished", true}});
  while (!commands.ended) {
    FLOTILLA_RETURN_IF_ERROR(learner.take().status());
    std::this_thread::sleep_for(milliseconds(100));
    commands.look();
  }
  // Bytes that were bad on their way get a second chance.
  for (int quiet = 0; quiet < 2;) {
    FLOTILLA_ASSIGN_OR_RETURN(const std::size_t groups, learner.take());
    quiet = groups == 0 ? quiet + 1 : 0;
  }
  print({{"ended", true}});
  return ok_status();
}

}  // namespace
}  // namespace flotilla

int main(int count, char** arguments) {
  flotilla::Options options;
  CLI::App app("A learner without training");
  app.add_option("HUB", options.hub)->required();
  app.add_option("RUN", options.run)->required();
  app.add_option("--model", options.model)->required();
  app.add_option("--every-ms", options.every_ms);
  app.add_option("--changed", options.changed);
  app.add_option("--versions", options.versions);
  app.add_option("--wanted", options.wanted);
  app.add_option("--group", options.group);
  CLI11_PARSE(app, count, arguments);
  const flotilla::Status status = flotilla::learn(options);
  if (!status.ok()) fmt::print(stderr, "net_learner: {}\n", status.to_string());
  return status.ok() ? 0 : 1;
}
