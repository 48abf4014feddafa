// `flotilla run`, as a person calls it, on a hub with real versions of a tiny model.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <set>

#include <fmt/format.h>

#include "base/files.h"
#include "base/log.h"
#include "cli/commands.h"
#include "config/config.h"
#include "config/run_config.h"
#include "env/environment.h"
#include "hub/hub_server.h"
#include "learn/checkpoint.h"
#include "learn/control_socket.h"
#include "learn/learner_program.h"
#include "model/test_models.h"
#include "sync/manifest.h"
#include "sync/publisher.h"
#include "sync/run_spec.h"
#include "sync/subscriber.h"

namespace flotilla {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

struct Said {
  int code = 0;
  std::string out, error;
};

Said flotilla(std::vector<std::string> words) {
  words.insert(words.begin(), "flotilla");
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  testing::internal::CaptureStdout();
  testing::internal::CaptureStderr();
  Said said{.code = run_cli(static_cast<int>(arguments.size()), arguments.data()), .out = {}, .error = {}};
  std::fflush(stdout);
  said.out = testing::internal::GetCapturedStdout();
  said.error = testing::internal::GetCapturedStderr();
  return said;
}

// A replay buffer (docs/formats/checkpoint.md) that has had one group, and has none.
Bytes replay_of(const std::string& known) {
  ByteWriter writer;
  for (const std::uint64_t number : {1, 1, 0, 1}) writer.put_varint(number);
  writer.put_varint(known.size());
  writer.put_bytes(as_bytes(known));
  return std::move(writer).take();
}

// Of the corpus that is installed; made once.
const Bytes& environment_artifact() {
  static const Bytes bytes = build_environment_artifact("dictionary", EnvironmentSection().source).value();
  return bytes;
}

// Versions 0 to 8 of ada/demo, two steps each and an anchor every three; checkpoints of steps 8, 12 and 16; the folder
// of a learner that has left.
class RunCommandTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { set_log_level(LogLevel::kError); }
  static void TearDownTestSuite() { set_log_level(LogLevel::kInfo); }

  RunCommandTest() {
    for (const char* variable : {"XDG_CONFIG_HOME", "XDG_STATE_HOME", "XDG_CACHE_HOME"}) {
      ::setenv(variable, (folder_.path() / variable).c_str(), 1);
    }
    config_.run.name = layout_.prefix;
    config_.run.hub = hub_.string();
    config_.run.folder = run_;
    config_.model.source = folder_.path() / "model";
    config_.learner.max_staleness = 1;
    const auto tokenizer = Tokenizer::create(tiny_tokenizer_spec()).value();
    EXPECT_TRUE(save_model_folder(config_.model.source, weights_, *tokenizer).ok());
    key_ = load_or_create_learner_key().value();
    spec_.run = layout_.prefix;
    spec_.seed = config_.run.seed;
    spec_.model_config = put_artifact(*store_, layout_, as_bytes(weights_.description.to_config_json())).value();
    spec_.tokenizer = put_artifact(*store_, layout_, as_bytes(tokenizer->to_json())).value();
    spec_.environment = put_artifact(*store_, layout_, environment_artifact()).value();
    spec_.environment_name = "dictionary";
    spec_.environment_digest =
        open_environment("dictionary", environment_artifact(), folder_.path() / "environment").value()->digest();
    spec_.learner_key = key_->public_key();
    EXPECT_TRUE(publish_run_spec(*store_, layout_, spec_, *key_).ok());
    EXPECT_TRUE(write_file_atomically(run_ / "run.toml", config_toml(config_)).ok());
    const fs::path link = learner_link(hub_.string(), layout_.prefix);
    fs::create_directories(link.parent_path());
    fs::create_directory_symlink(run_, link);
    publish();
  }

  void publish() {
    const auto publisher =
        Publisher::open(*store_, layout_, weights_.description, key_, {.anchor_every = 3}, null_event_sink()).value();
    for (std::uint64_t version = 0; version <= 8; ++version) {
      const std::uint64_t step = 2 * version;
      ASSERT_TRUE(publisher->publish(*grid_of(version), step).ok());
      if (version >= 4 && version % 2 == 0) save_checkpoint(step, grid_of(version));
    }
    ASSERT_TRUE(publisher->update_head(RunState::kRunning, 4).ok());  // as one that was killed leaves it
  }
  std::shared_ptr<const GridState> grid_of(std::uint64_t version) {
    GridState grid = make_grid(weights_).value();
    grid.tensors[0].q[0] = static_cast<std::int8_t>(version);
    return std::make_shared<const GridState>(std::move(grid));
  }
  void save_checkpoint(std::uint64_t step, std::shared_ptr<const GridState> grid) {
    ModelWeights masters = weights_, moments = weights_;
    masters.tensors[0][1] = static_cast<float>(step);
    TrainerState state{{masters.tensors.begin(), masters.tensors.end()},
                       {moments.tensors.begin(), moments.tensors.end()},
                       {moments.tensors.begin(), moments.tensors.end()}};
    LearnerMemory memory;
    memory.progress.run = layout_.prefix;
    memory.progress.warmup_steps = 3;
    memory.progress.steps = memory.progress.published_steps = memory.progress.optimizer_steps = step;
    memory.version0 = grid_of(0);
    memory.grid = std::move(grid);
    const std::string group = fmt::format("g{}", step);
    memory.replay = replay_of(group);
    memory.groups.emplace(group, to_bytes("x"));
    ASSERT_TRUE(CheckpointFolder(run_ / "checkpoints", weights_.description, 100).save(memory, state).ok());
  }

  // A checkpoint as a learner would resume from it.
  struct Resumed {
    LearnerMemory memory;
    std::vector<std::vector<float>> masters, mean, mean_square;
  };
  Resumed resume(const fs::path& folder, const std::string& run) {
    Resumed found{{}, weights_.tensors, weights_.tensors, weights_.tensors};
    found.memory = CheckpointFolder(folder / "checkpoints", weights_.description, 100)
                       .load(run, {{found.masters.begin(), found.masters.end()},
                                   {found.mean.begin(), found.mean.end()},
                                   {found.mean_square.begin(), found.mean_square.end()}})
                       .value()
                       .value();
    return found;
  }
  std::vector<std::uint64_t> checkpoints() {
    return CheckpointFolder(run_ / "checkpoints", weights_.description, 100).list().value();
  }
  Head head(const HubLayout& layout) {
    return head_from_json(as_text(store_->get(layout.head())->bytes), key_->public_key()).value();
  }
  Manifest manifest(const HubLayout& layout, std::uint64_t version) {
    const Object object = store_->get(layout.manifest(Version(version))).value();
    return manifest_from_json(as_text(object.bytes), key_->public_key()).value();
  }
  Result<PulledVersion> fetch(const HubLayout& layout, std::uint64_t version) {
    return Subscriber::create(*store_, layout, weights_.description, key_->public_key(), null_event_sink())
        ->fetch(Version(version));
  }
  std::set<std::string> keys() {
    std::set<std::string> keys;
    const auto objects = list_all(*store_, "").value();
    for (const ObjectInfo& object : objects) keys.insert(object.key);
    return keys;
  }
  std::string at(std::uint64_t version) const { return fmt::format("{}@{}", run_address_, version); }

  const TemporaryFolder folder_;
  const fs::path hub_ = folder_.path() / "hub", run_ = folder_.path() / "run";
  const HubLayout layout_{"ada/demo"};
  const std::string run_address_ = (hub_ / "ada/demo").string();
  const std::unique_ptr<ObjectStore> store_ = open_directory_store(hub_.string(), true).value();
  const ModelWeights weights_ = tiny_weights(tiny_description());
  std::shared_ptr<const SigningKey> key_;
  RunSpec spec_;
  RunConfig config_;
};

TEST_F(RunCommandTest, ALearnerAtWorkIsPausedAndGoesOn) {
  LearnerControl control;
  const auto socket = ControlSocket::listen(run_ / kControlSocketName, [&](std::string_view command) {
                        return answer_learner_command(control, command);
                      }).value();
  EXPECT_THAT(flotilla({"run", "pause", run_address_}).out, HasSubstr("takes no step"));
  EXPECT_TRUE(control.paused());
  EXPECT_EQ(head(layout_).generation, Generation(1)) << "head is the learner's";
  EXPECT_EQ(flotilla({"run", "resume", run_address_}).code, 0);
  EXPECT_FALSE(control.paused());
}

TEST_F(RunCommandTest, WithoutALearnerAPauseStopsTheFleetAndWaitsForTheLearner) {
  EXPECT_THAT(flotilla({"run", "pause", run_address_}).out, HasSubstr("no learner is at work"));
  EXPECT_EQ(head(layout_).state, RunState::kPaused);
  EXPECT_EQ(head(layout_).wanted, 0);
  EXPECT_TRUE(fs::exists(run_ / kPausedName));
  EXPECT_EQ(flotilla({"run", "pause", run_address_}).code, 0) << "again";
  EXPECT_THAT(flotilla({"run", "resume", run_address_}).out, HasSubstr("goes on with it"));
  EXPECT_FALSE(fs::exists(run_ / kPausedName));
}

TEST_F(RunCommandTest, WithoutTheRunsKeyNobodyPausesIt) {
  fs::remove_all(folder_.path() / "XDG_CONFIG_HOME");
  Said said = flotilla({"run", "pause", run_address_});
  EXPECT_EQ(said.code, 1);
  EXPECT_THAT(said.error, HasSubstr("no learner's key"));
  ASSERT_TRUE(load_or_create_learner_key().ok());
  said = flotilla({"run", "rollback", at(4)});
  EXPECT_EQ(said.code, 1);
  EXPECT_THAT(said.error, HasSubstr("the run is of the key"));
  EXPECT_EQ(head(layout_).version, Version(8));
}

TEST_F(RunCommandTest, AWrongUseIsTold) {
  for (const auto& words :
       std::vector<std::vector<std::string>>{{"run"},
                                             {"run", "dance"},
                                             {"run", "pause"},
                                             {"run", "pause", "x"},
                                             {"run", "rollback", run_address_},
                                             {"run", "fork", run_address_},
                                             {"run", "fork", run_address_, "x"},
                                             {"run", "gc", run_address_, "--retention.grups", "1"}}) {
    const Said said = flotilla(words);
    EXPECT_EQ(said.code, 2) << words.back() << ": " << said.error;
  }
  EXPECT_EQ(flotilla({"run", "rollback", at(9)}).code, 1);
  const Said typo = flotilla({"run", "rollback", at(6), "--folder", (folder_.path() / "rnu").string()});
  EXPECT_EQ(typo.code, 1);
  EXPECT_THAT(typo.error, HasSubstr("there is no folder"));
  EXPECT_EQ(head(layout_).version, Version(8));
  fs::remove(learner_link(hub_.string(), layout_.prefix));
  for (const char* command : {"pause", "resume", "gc"}) {
    const Said said = flotilla({"run", command, run_address_});
    EXPECT_EQ(said.code, 1);
    EXPECT_THAT(said.error, HasSubstr("has started no learner"));
  }
}

TEST_F(RunCommandTest, GcSaysWhatItWouldRemoveAndRemovesIt) {
  const std::string old_group = layout_.rollout(Version(2), WorkerId("w"), GroupId("old"));
  ASSERT_TRUE(store_->put(old_group, as_bytes("x")).ok());
  ASSERT_TRUE(store_->put(layout_.rollout(Version(8), WorkerId("w"), GroupId("new")), as_bytes("x")).ok());
  fs::last_write_time(hub_ / old_group, fs::file_time_type::clock::now() - std::chrono::hours(25));
  const auto before = keys();
  const Said would = flotilla({"run", "gc", run_address_, "--dry-run"});
  EXPECT_EQ(would.code, 0) << would.error;
  EXPECT_THAT(would.out, HasSubstr(old_group + "\n"));
  EXPECT_THAT(would.out, HasSubstr("would remove 1 groups, 2 versions and 0 claims: 5 objects"));
  EXPECT_EQ(keys(), before);

  EXPECT_EQ(flotilla({"run", "gc", run_address_}).code, 0);
  EXPECT_EQ(keys().size(), before.size() - 5);
  for (const std::uint64_t version : {0, 3, 4, 5, 6, 7, 8}) EXPECT_TRUE(fetch(layout_, version).ok()) << version;
  EXPECT_EQ(fetch(layout_, 1).status().code(), StatusCode::kNotFound);
  EXPECT_THAT(flotilla({"run", "gc", run_address_}).out, HasSubstr("0 objects"));
}

TEST_F(RunCommandTest, RollbackGoesOnFromTheCheckpointOfTheVersion) {
  const Said said = flotilla({"run", "rollback", at(6)});
  ASSERT_EQ(said.code, 0) << said.error;
  EXPECT_THAT(said.out, HasSubstr("version 9 has the state of version 6, after step 12"));
  EXPECT_THAT(said.out, HasSubstr("1 later checkpoints are set aside"));
  EXPECT_THAT(checkpoints(), ElementsAre(11, 15));
  EXPECT_TRUE(fs::exists(run_ / "checkpoints" / "0000000019.safetensors.abandoned"));
  EXPECT_EQ(head(layout_).version, Version(9));
  EXPECT_EQ(head(layout_).state, RunState::kPaused);
  const Manifest published = manifest(layout_, 9);
  EXPECT_EQ(published.state, manifest(layout_, 6).state);
  EXPECT_EQ(published.optimizer_step, 12u);
  EXPECT_TRUE(published.anchor);
  const Resumed resumed = resume(run_, layout_.prefix);
  EXPECT_EQ(resumed.memory.progress.steps, 12u);
  EXPECT_EQ(resumed.masters[0][1], 12.0f);

  // Again: nothing is left to do. Back to what was given up: no.
  EXPECT_THAT(flotilla({"run", "rollback", at(9)}).out, HasSubstr("version 9 has the state of version 9"));
  const Said back = flotilla({"run", "rollback", at(8)});
  EXPECT_EQ(back.code, 1);
  EXPECT_THAT(back.error, HasSubstr("gone back behind version 8"));
  EXPECT_EQ(head(layout_).version, Version(9));
}

TEST_F(RunCommandTest, RollbackWithoutACheckpointTakesTheWeightsFromTheHub) {
  const Said said = flotilla({"run", "rollback", at(3)});
  ASSERT_EQ(said.code, 0) << said.error;
  EXPECT_THAT(said.out, HasSubstr("no checkpoint has it"));
  EXPECT_THAT(checkpoints(), ElementsAre(9));
  const Resumed resumed = resume(run_, layout_.prefix);
  EXPECT_EQ(resumed.memory.progress.steps, 6u);
  EXPECT_EQ(resumed.memory.progress.warmup_steps, 3u);
  EXPECT_EQ(resumed.memory.progress.optimizer_steps, 0u);
  EXPECT_EQ(*resumed.memory.grid, *grid_of(3));
  EXPECT_EQ(*resumed.memory.version0, *grid_of(0));
  EXPECT_EQ(resumed.masters, dequantize(weights_.description, *grid_of(3)).tensors);
  EXPECT_EQ(resumed.mean[0], std::vector<float>(resumed.mean[0].size(), 0.0f));
  EXPECT_TRUE(resumed.memory.groups.empty());
  EXPECT_EQ(resumed.memory.replay, replay_of("g16")) << "what was admitted once is not admitted again";
  EXPECT_EQ(manifest(layout_, 9).state, manifest(layout_, 3).state);
  EXPECT_THAT(said.out, HasSubstr("--config " + (run_ / "run.toml").string()));

  // As after a crash. The checkpoint that is there now has no optimizer either.
  fs::remove(run_ / "run.toml");
  const Said again = flotilla({"run", "rollback", at(3)});
  ASSERT_EQ(again.code, 0) << again.error;
  EXPECT_THAT(again.out, HasSubstr("no checkpoint has it"));
  EXPECT_THAT(again.out, ::testing::Not(HasSubstr("run.toml")));
  EXPECT_EQ(head(layout_).version, Version(9));
}

TEST_F(RunCommandTest, NobodyGoesBackUnderALearnerAtWork) {
  LearnerControl control;
  const auto socket = ControlSocket::listen(run_ / kControlSocketName, [&](std::string_view command) {
                        return answer_learner_command(control, command);
                      }).value();
  const Said said = flotilla({"run", "rollback", at(6)});
  EXPECT_EQ(said.code, 1);
  EXPECT_THAT(said.error, HasSubstr("flotilla stop --leave"));
  EXPECT_EQ(head(layout_).version, Version(8));
}

TEST_F(RunCommandTest, AForkIsARunOfItsOwnThatBeginsWithTheVersion) {
  const fs::path fork = folder_.path() / "fork";
  const HubLayout layout{"ada/again"};
  const std::vector<std::string> command = {"run",
                                            "fork",
                                            at(6),
                                            (hub_ / "ada/again").string(),
                                            "--folder",
                                            fork.string(),
                                            "--optimizer.learning_rate",
                                            "3e-6",
                                            "--rollout.claims",
                                            "true"};
  const Said said = flotilla(command);
  ASSERT_EQ(said.code, 0) << said.error;
  EXPECT_THAT(said.out, HasSubstr("version 0 is version 6"));
  EXPECT_THAT(said.out, HasSubstr("masters and optimizer of a checkpoint"));
  EXPECT_EQ(*fetch(layout, 0)->state, *grid_of(6));
  EXPECT_EQ(head(layout).state, RunState::kPaused);
  const Resumed resumed = resume(fork, "ada/again");
  EXPECT_EQ(resumed.memory.progress.run, "ada/again");
  EXPECT_EQ(resumed.memory.progress.steps + resumed.memory.progress.warmup_steps, 0u);
  EXPECT_EQ(resumed.memory.progress.optimizer_steps, 12u);
  EXPECT_EQ(resumed.masters[0][1], 12.0f);
  EXPECT_EQ(*resumed.memory.version0, *grid_of(6));
  EXPECT_TRUE(resumed.memory.groups.empty());
  EXPECT_EQ(head(layout_).version, Version(8)) << "the other run is as it was";

  // A learner takes it for its own.
  EXPECT_EQ(fetch_run_spec(*store_, layout, "").value().claims, kClaimTasksMax);
  const std::vector<std::string> learner = {"--config", (fork / "run.toml").string(), "--dry-run"};
  testing::internal::CaptureStdout();
  const Status checked = run_learner_program(learner, nullptr, {});
  const std::string printed = testing::internal::GetCapturedStdout();
  EXPECT_TRUE(checked.ok()) << checked.to_string();
  EXPECT_THAT(printed, HasSubstr("learning_rate = 3e-06"));
  EXPECT_THAT(printed, HasSubstr("resumes from checkpoint 0"));

  const Said twice = flotilla(command);
  EXPECT_EQ(twice.code, 1);
  EXPECT_THAT(twice.error, HasSubstr("is there already"));
}

TEST_F(RunCommandTest, AForkOfAVersionWithoutACheckpointCarriesWeights) {
  const Said said = flotilla({"run", "fork", at(3), (folder_.path() / "hub2" / "eve/mine").string(), "--folder",
                              (folder_.path() / "fork").string()});
  ASSERT_EQ(said.code, 0) << said.error;
  EXPECT_THAT(said.out, HasSubstr("masters are the grid's values"));
  EXPECT_EQ(resume(folder_.path() / "fork", "eve/mine").masters, dequantize(weights_.description, *grid_of(3)).tensors);
  const Said gone = flotilla({"run", "fork", at(77), (folder_.path() / "hub2" / "eve/other").string(), "--folder",
                              (folder_.path() / "other").string()});
  EXPECT_EQ(gone.code, 1);
  EXPECT_THAT(gone.error, HasSubstr("version 77 is not on the hub"));
}

TEST_F(RunCommandTest, OverAHubServerALearnersTokenRemovesAndAWorkersDoesNot) {
  const auto tokens = TokenStore::open(folder_.path() / "state").value();
  HubMetrics metrics;
  HubService service(hub_.string(), *tokens, metrics, system_clock());
  HubServerOptions options;
  options.port = options.metrics_port = 0;
  const auto server = HubServer::start(options, service, metrics).value();
  const std::string address = fmt::format("http://127.0.0.1:{}/ada/demo", server->port());
  const std::string config = (run_ / "run.toml").string();
  const auto use = [](const TokenStore::Issued& token) {
    ::setenv("AWS_ACCESS_KEY_ID", token.token.id.c_str(), 1);
    ::setenv("AWS_SECRET_ACCESS_KEY", token.secret.c_str(), 1);
  };
  const auto before = keys();
  use(tokens->add({HubRole::kWorker, "ada/demo", "w"}, {}).value());
  const Said refused = flotilla({"run", "gc", address, "--config", config});
  EXPECT_EQ(refused.code, 1);
  EXPECT_THAT(refused.error, HasSubstr("0 of 4 objects are removed"));
  EXPECT_EQ(keys(), before);
  use(tokens->add({HubRole::kLearner, "ada/demo", ""}, {}).value());
  const Said done = flotilla({"run", "gc", address, "--config", config});
  EXPECT_EQ(done.code, 0) << done.error;
  EXPECT_EQ(keys().size(), before.size() - 4);
  ::unsetenv("AWS_ACCESS_KEY_ID");
  ::unsetenv("AWS_SECRET_ACCESS_KEY");
}

}  // namespace
}  // namespace flotilla
