#include "learn/learner_program.h"

#include <atomic>
#include <iostream>
#include <numeric>
#include <optional>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/files.h"
#include "base/log.h"
#include "base/philox.h"
#include "base/user_folders.h"
#include "config/config.h"
#include "learn/control_socket.h"
#include "learn/hub_snapshot_sink.h"
#include "learn/learner_loop.h"
#include "learn/retention_keeper.h"
#include "learn/run_lineage.h"
#include "rollout/episode_builder.h"
#include "store/open_store.h"
#include "store/quota_store.h"
#include "sync/subscriber.h"
#include "telemetry/event_log.h"

namespace flotilla {
namespace {

namespace fs = std::filesystem;

constexpr char kHelp[] =
    "flotilla-learner --config FILE [--dry-run] [--SECTION.KEY VALUE ...]\n\n"
    "Trains the run that FILE (docs/configuration.md) describes: warms up, publishes weights to the hub and learns "
    "from\n"
    "what workers send. A run that was started before is resumed from its last checkpoint.\n\n"
    "  --dry-run   check configuration, model, environment and hub, and stop\n"
    "  --help      this text\n\n"
    "Example: flotilla-learner --config configs/demo.toml --run.hub /srv/hub --model.source model.gguf --dry-run\n";

constexpr char kWriter[] = "learner";
constexpr std::uint64_t kDemonstrationStream = 0x64656d6f;                  // "demo": which tasks the warm-up shows
constexpr std::chrono::nanoseconds kSegmentAge = std::chrono::seconds(5);   // until others see an event
constexpr std::chrono::nanoseconds kCountEvery = std::chrono::minutes(10);  // of the quota, without looks

struct Arguments {
  RunConfig config;
  bool dry_run = false;
  bool help = false;
};

Result<Arguments> read_arguments(std::span<const std::string> arguments) {
  Arguments result;
  std::optional<std::string> file;
  std::vector<std::string> overrides;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    if (arguments[i] == "--help" || arguments[i] == "-h") {
      result.help = true;
      return result;
    }
    if (arguments[i] == "--dry-run") {
      result.dry_run = true;
    } else if (arguments[i] == "--config") {
      if (++i == arguments.size()) return invalid_argument("--config: expected a file");
      file = arguments[i];
    } else {
      overrides.push_back(arguments[i]);
    }
  }
  if (file) FLOTILLA_RETURN_IF_ERROR(load_config(result.config, *file));
  FLOTILLA_ASSIGN_OR_RETURN(const auto others, override_config(result.config, overrides));
  if (!others.empty()) return invalid_argument(fmt::format("unknown argument '{}'; see --help", others.front()));
  FLOTILLA_RETURN_IF_ERROR(resolve_config(result.config));
  const RolloutSection& rollout = result.config.rollout;
  if (!(rollout.temperature > 0)) {
    return invalid_argument("rollout.temperature: expected above 0 in training: without chance all episodes are one");
  }
  if (rollout.top_k != 0 || rollout.top_p != 1) {
    return invalid_argument(
        "rollout.top_k, rollout.top_p: expected 0 and 1 in training: the loss compares whole distributions");
  }
  return result;
}

// Everything that a run is made of, opened and checked.
struct Workshop {
  RunConfig config;
  Model model;
  Bytes artifact;
  std::unique_ptr<TemporaryFolder> scratch;  // of a dry run
  std::unique_ptr<Environment> environment;
  EpisodeRules rules;
  std::shared_ptr<const SigningKey> key;
  RunSpec spec;
  std::vector<std::uint64_t> demonstrations;  // tasks of the warm-up, in order
};

fs::path key_path() { return user_config_folder() / "learner.pem"; }

bool has_key() {
  std::error_code error;
  return fs::exists(key_path(), error);
}

// A run that was trained in another folder would begin anew here, although the hub has its versions. What cannot be
// read may be there.
Status check_folder(const RunSection& run, const ModelDescription& description) {
  const auto has_checkpoint = [&](const fs::path& folder) -> Result<bool> {
    FLOTILLA_ASSIGN_OR_RETURN(const auto numbers, CheckpointFolder(folder / "checkpoints", description, 1).list());
    return !numbers.empty();
  };
  std::error_code error;
  const fs::path last = fs::read_symlink(learner_link(run.hub, run.name), error);
  if (error) return ok_status();
  FLOTILLA_ASSIGN_OR_RETURN(const bool here, has_checkpoint(run.folder));
  if (here) return ok_status();
  FLOTILLA_ASSIGN_OR_RETURN(const bool there, has_checkpoint(last));
  if (!there) return ok_status();
  const auto head = [&]() -> Status {
    FLOTILLA_ASSIGN_OR_RETURN(const auto hub, open_store(run.hub, false));
    return hub->get(HubLayout{run.name}.head()).status();
  }();
  if (head.code() == StatusCode::kNotFound) return ok_status();
  if (!head.ok()) return head.with_context("hub " + run.hub);
  return failed_precondition(
      fmt::format("run {} has its checkpoints in {}, and {} has none: name that folder "
                  "(--run.folder), or remove them to begin anew",
                  run.name, last.string(), fs::absolute(run.folder).string()));
}

// A dry run leaves no key behind.
Result<std::shared_ptr<const SigningKey>> open_key(bool dry_run) {
  return dry_run && !has_key() ? SigningKey::generate() : load_or_create_learner_key();
}

Result<Workshop> open_workshop(const RunConfig& config, bool dry_run) {
  Workshop shop;
  shop.config = config;
  FLOTILLA_ASSIGN_OR_RETURN(shop.model, load_model(config.model.source));
  const ModelDescription& description = shop.model.weights.description;
  FLOTILLA_RETURN_IF_ERROR(check_folder(config.run, description));
  FLOTILLA_ASSIGN_OR_RETURN(shop.artifact,
                            build_environment_artifact(config.environment.name, config.environment.source));
  if (dry_run) shop.scratch = std::make_unique<TemporaryFolder>();
  const fs::path& folder = dry_run ? shop.scratch->path() : config.run.folder;
  FLOTILLA_ASSIGN_OR_RETURN(shop.environment,
                            open_environment(config.environment.name, shop.artifact, folder / "environment"));
  FLOTILLA_ASSIGN_OR_RETURN(shop.rules, make_episode_rules(*shop.environment, *shop.model.tokenizer, description));
  FLOTILLA_ASSIGN_OR_RETURN(shop.key, open_key(dry_run));

  RunSpec& spec = shop.spec;
  spec.scale_group = static_cast<int>(kScaleGroup);
  spec.run = config.run.name;
  set_sampling(spec, config);
  spec.model_config = sha256(description.to_config_json());
  spec.tokenizer = sha256(shop.model.tokenizer->to_json());
  spec.environment = sha256(shop.artifact);
  spec.environment_name = config.environment.name;
  spec.environment_digest = shop.environment->digest();
  spec.learner_key = shop.key->public_key();

  if (shop.config.loss.token_budget == 0) shop.config.loss.token_budget = shop.environment->limits().model_tokens;
  const std::uint64_t tasks = shop.environment->task_count(Split::kTrain);
  if (static_cast<std::uint64_t>(config.warmup.demonstrations) > tasks) {
    return invalid_argument(fmt::format("warmup.demonstrations: expected at most {}, the tasks that there are", tasks));
  }
  shop.demonstrations.resize(tasks);
  std::iota(shop.demonstrations.begin(), shop.demonstrations.end(), std::uint64_t{0});
  PhiloxStream random(config.run.seed, kDemonstrationStream);
  shuffle(std::span(shop.demonstrations), random);
  shop.demonstrations.resize(config.warmup.demonstrations);
  return shop;
}

Result<TrainingSequence> demonstration(const Workshop& shop, std::uint64_t index) {
  const std::uint64_t seed = shop.config.run.seed;
  FLOTILLA_ASSIGN_OR_RETURN(const Task task, shop.environment->task(Split::kTrain, shop.demonstrations.at(index)));
  FLOTILLA_ASSIGN_OR_RETURN(const auto turns, shop.environment->demonstration(task, seed));
  FLOTILLA_ASSIGN_OR_RETURN(Episode episode,
                            demonstration_episode(shop.rules, task, environment_seed(seed, task.index, 0), turns));
  Group group;
  group.prompt_tokens =
      static_cast<std::int32_t>(std::count(episode.sources.begin(), episode.sources.end(), TokenSource::kPrompt));
  group.episodes.push_back(std::move(episode));
  return pack_group(group, std::vector<float>{1.0f}, {}).front();
}

TrainerOptions trainer_options(const RunConfig& config) {
  return {.threads = config.learner.threads,
          .grid_forward = config.learner.forward == ForwardPass::kGrid,
          .temperature = config.rollout.temperature,
          .micro_batch_tokens = config.learner.micro_batch_tokens};
}

Status print_findings(const Workshop& shop) {
  const RunConfig& config = shop.config;
  const ModelDescription& model = shop.model.weights.description;
  const double copies = 4.0 + (config.learner.forward == ForwardPass::kGrid) + (config.loss.kl > 0);
  const auto hub = open_store(config.run.hub, false);
  if (!hub.ok() && hub.status().code() != StatusCode::kNotFound) return hub.status().with_context("hub");
  if (hub.ok()) {
    const HubLayout layout{config.run.name};
    const auto there = fetch_run_spec(**hub, layout, fingerprint(shop.spec.learner_key));
    if (there.ok() && !(*there == shop.spec)) {
      return failed_precondition("the hub has another run of this name; choose another run.name");
    }
    if (!there.ok() && there.status().code() != StatusCode::kNotFound) return there.status();
  }
  if (!shop.demonstrations.empty()) FLOTILLA_RETURN_IF_ERROR(demonstration(shop, 0).status());
  const CheckpointFolder checkpoints(config.run.folder / "checkpoints", model, config.learner.keep_checkpoints);
  FLOTILLA_ASSIGN_OR_RETURN(const auto numbers, checkpoints.list());
  std::cout << config_toml(config)
            << fmt::format(
                   "\n# model: {} with {:.1f} M parameters, {} layers, vocabulary {}\n"
                   "# environment: {} with {} training and {} held-out tasks, {} model tokens an episode\n"
                   "# warm-up: {} steps; learner key {}\n"
                   "# memory for weights and optimizer: about {:.1f} GB\n"
                   "# hub: {}; {}\n"
                   "# all is well\n",
                   model.architecture, static_cast<double>(model.parameters()) / 1e6, model.layers, model.vocabulary,
                   shop.environment->name(), shop.environment->task_count(Split::kTrain),
                   shop.environment->task_count(Split::kHeldOut), shop.environment->limits().model_tokens,
                   (config.warmup.demonstrations + config.warmup.batch - 1) / config.warmup.batch,
                   has_key() ? fingerprint(shop.spec.learner_key) : "will be made",
                   copies * 4 * static_cast<double>(model.parameters()) / 1e9, hub.ok() ? "is there" : "will be made",
                   numbers.empty() ? "no checkpoint yet" : fmt::format("resumes from checkpoint {}", numbers.back()));
  return ok_status();
}

Status publish_run(ObjectStore& store, const HubLayout& layout, const Workshop& shop) {
  const std::string config_json = shop.model.weights.description.to_config_json();
  const std::string tokenizer_json = shop.model.tokenizer->to_json();
  FLOTILLA_RETURN_IF_ERROR(put_artifact(store, layout, as_bytes(config_json)).status());
  FLOTILLA_RETURN_IF_ERROR(put_artifact(store, layout, as_bytes(tokenizer_json)).status());
  FLOTILLA_RETURN_IF_ERROR(put_artifact(store, layout, shop.artifact).status());
  return publish_run_spec(store, layout, shop.spec, *shop.key);
}

// For `flotilla stop` and check_folder: training goes on without it.
void make_learner_link(const RunSection& run) {
  const fs::path link = learner_link(run.hub, run.name);
  const fs::path fresh = link.string() + ".new";
  std::error_code error;
  fs::create_directories(link.parent_path(), error);
  if (!error) fs::remove(fresh, error);
  if (!error) fs::create_directory_symlink(fs::absolute(run.folder), fresh, error);
  if (!error) fs::rename(fresh, link, error);
  if (error) log_warning("learn", "no link {}: {}; flotilla stop needs --folder", link.string(), error.message());
}

// Of the learner in this folder. A pause is on the disk before it is answered.
std::string answer_command(const RunConfig& config, LearnerControl& control, std::string_view command) {
  if (command == "pause" || command == "resume") {
    const Status kept = set_paused(config.run.folder, command == "pause");
    if (!kept.ok()) return nlohmann::json{{"error", kept.message()}}.dump();
  }
  return answer_learner_command(control, command);
}

Status learn(Workshop shop, const MakeTrainer& make_trainer, std::stop_token stop) {
  const RunConfig& config = shop.config;
  const HubLayout layout{config.run.name};
  std::error_code error;
  fs::create_directories(config.run.folder, error);
  if (error) return errno_status(error.value(), "make " + config.run.folder.string());

  LearnerControl control;
  const std::stop_callback leave(stop, [&control] { control.ask(LearnerControl::Request::kLeave); });
  // Also keeps a second learner out of the folder.
  FLOTILLA_ASSIGN_OR_RETURN(
      const auto socket, ControlSocket::listen(config.run.folder / kControlSocketName, [&](std::string_view command) {
        return answer_command(config, control, command);
      }));
  control.pause(fs::exists(config.run.folder / kPausedName, error));
  FLOTILLA_RETURN_IF_ERROR(write_file_atomically(config.run.folder / "run.toml", config_toml(config)));

  FLOTILLA_ASSIGN_OR_RETURN(const auto store, open_store(config.run.hub, true, stop));
  const RunRetention retention(*store, layout, shop.spec.learner_key);
  // Until there are events: a run on a full hub may have to make room for what publish_run() writes.
  RetentionKeeper at_start(retention, {.rules = retention_rules(config), .every = {}, .stop = stop}, null_event_sink(),
                           [] {});
  std::atomic<RetentionKeeper*> cleaner = &at_start;
  QuotaStore quota(*store, {.prefix = layout.prefix + "/",
                            .bytes_max = static_cast<std::uint64_t>(config.retention.quota_mib) << 20,
                            .make_room = [&cleaner] { return cleaner.load()->make_room(); },
                            .setting = "retention.quota_mib"});
  FLOTILLA_RETURN_IF_ERROR(publish_run(quota, layout, shop).with_context("run " + config.run.name));
  make_learner_link(config.run);  // not before: the one that is there says where this run's checkpoints are
  FLOTILLA_ASSIGN_OR_RETURN(
      const auto events, EventLog::open({.folder = config.run.folder / "events",
                                         .writer = kWriter,
                                         .segment_age = kSegmentAge,
                                         .deliver = [&](std::uint64_t number, ByteSpan bytes) {
                                           return store->put_if_absent(layout.events(kWriter, number), bytes).status();
                                         }}));
  const std::string address = address_below(config.run.hub, config.run.name);
  // Settings of a bucket hold what a shell would read.
  const char* quote = address.find_first_of("?&") == std::string::npos ? "" : "'";
  log_info("learn", "run {0}; workers join with: flotilla work {1}{0}{1} --learner {2}", address, quote,
           fingerprint(shop.spec.learner_key));

  RetentionKeeper keeper(retention,
                         {.rules = retention_rules(config),
                          .every = std::chrono::duration_cast<std::chrono::nanoseconds>(config.retention.every),
                          .after_every = config.retention.quota_mib > 0 ? kCountEvery : std::chrono::nanoseconds(0),
                          .stop = stop},
                         *events, [&quota] { (void)quota.count(); });
  cleaner = &keeper;

  const ModelDescription description = shop.model.weights.description;
  FLOTILLA_ASSIGN_OR_RETURN(const auto trainer, make_trainer(description, trainer_options(config)));
  FLOTILLA_RETURN_IF_ERROR(trainer->set_masters(shop.model.weights));
  shop.model.weights.tensors.clear();

  HubVersions versions(*store, layout, shop.spec.learner_key);
  HubRolloutSource source(*store, layout,
                          {.run = &shop.spec,
                           .environment = shop.environment.get(),
                           .tokenizer = shop.model.tokenizer.get(),
                           .tokenizer_digest = shop.model.tokenizer->digest(),
                           .corpus = shop.spec.environment,
                           .vocabulary = description.vocabulary,
                           .context = description.context},
                          versions);
  FLOTILLA_ASSIGN_OR_RETURN(auto publisher, Publisher::open(quota, layout, description, shop.key,
                                                            {.anchor_every = config.learner.anchor_every}, *events));
  HubSnapshotSink sink(
      std::move(publisher), versions, [&control] { control.wake(); }, [&quota] { return quota.crowded(); });
  CheckpointFolder checkpoints(config.run.folder / "checkpoints", description, config.learner.keep_checkpoints);
  LearnerLoop loop({.run = config.run.name,
                    .learner = config.learner,
                    .optimizer = config.optimizer,
                    .loss = config.loss,
                    .warmup = config.warmup,
                    .group_size = config.rollout.group_size},
                   {.trainer = *trainer,
                    .source = source,
                    .sink = sink,
                    .checkpoints = checkpoints,
                    .control = control,
                    .events = *events,
                    .clock = system_clock(),
                    .flush_events = [&] { return events->flush(); },
                    .demonstration = [&shop](std::uint64_t index) { return demonstration(shop, index); },
                    .wait = [&control](std::chrono::nanoseconds time) { control.wait(time); }});
  return loop.run();
}

}  // namespace

Result<std::shared_ptr<const SigningKey>> load_or_create_learner_key() {
  return SigningKey::load_or_create(key_path());
}

Result<std::shared_ptr<const SigningKey>> load_learner_key(const PublicKey& expected) {
  if (!has_key())
    return not_found(fmt::format("no learner's key at {}: only its owner may do this", key_path().string()));
  FLOTILLA_ASSIGN_OR_RETURN(auto key, load_or_create_learner_key());
  if (key->public_key() == expected) return key;
  return permission_denied(fmt::format("the run is of the key {}, the one at {} is {}", fingerprint(expected),
                                       key_path().string(), fingerprint(key->public_key())));
}

Status set_paused(const fs::path& folder, bool paused) {
  const fs::path file = folder / kPausedName;
  if (paused) return write_file_atomically(file, "flotilla run resume goes on\n");
  std::error_code error;
  fs::remove(file, error);
  return error ? errno_status(error.value(), "remove " + file.string()) : ok_status();
}

fs::path learner_link(std::string_view hub, std::string_view run) {
  return user_state_folder() / "learners" / hub_folder_name(hub) / run;
}

Status run_learner_program(std::span<const std::string> arguments, const MakeTrainer& make_trainer,
                           std::stop_token stop) {
  FLOTILLA_ASSIGN_OR_RETURN(const Arguments read, read_arguments(arguments));
  if (read.help) {
    std::cout << kHelp;
    return ok_status();
  }
  FLOTILLA_ASSIGN_OR_RETURN(Workshop shop, open_workshop(read.config, read.dry_run));
  if (read.dry_run) return print_findings(shop);
  return learn(std::move(shop), make_trainer, stop);
}

}  // namespace flotilla
