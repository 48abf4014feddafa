// Learners that crash and are replaced, workers that come and go, and a hub that fails in every way that fault_store.h
// knows, in thousands of seeded schedules. What must hold at every moment:
//   - head only rises, and a version that it has named never names another state;
//   - what a subscriber holds is, bit for bit, the state that was published under that number;
//   - wishes for head that come while a version is uploaded disturb nothing;
//   - when the faults end, the learner can publish, and every subscriber comes to the newest version.
#include <gtest/gtest.h>

#include <map>

#include <fmt/format.h>

#include "base/log.h"
#include "store/fault_store.h"
#include "sync/publisher.h"
#include "sync/signed_json.h"
#include "sync/state_holder_for_tests.h"
#include "sync/subscriber.h"
#include "sync/test_model.h"

namespace flotilla {
namespace {

ModelDescription tiny_description() {
  ModelDescription description;
  TensorSpec matrix;
  matrix.name = "m";
  matrix.rows = 2;
  matrix.cols = 70;
  TensorSpec vector;
  vector.name = "v";
  vector.kind = TensorKind::kVector;
  vector.rows = 1;
  vector.cols = 5;
  description.tensors = {matrix, vector};
  return description;
}

class World {
 public:
  explicit World(std::uint64_t seed) : random_(seed, 0) { state_ = random_state(description_, random_); }

  // What head names right now, seen past all faults.
  void observe() {
    const auto object = hub_->get(layout_.head());
    if (!object.ok()) {
      ASSERT_FALSE(newest_) << "head vanished";
      return;
    }
    if (object->bytes == newest_bytes_) return;
    newest_bytes_ = object->bytes;
    // Without checking signatures, which would take most of the time: the subscribers do.
    const auto body = open_signed_json(as_text(object->bytes));
    ASSERT_TRUE(body.ok()) << body.status().to_string();
    JsonFields fields(body->body);
    Head head;
    head.version = Version(fields.number("version", 0, ~0ull));
    head.generation = Generation(fields.number("generation", 0, ~0ull));
    head.sequence = fields.number("sequence", 0, ~0ull);
    head.manifest = fields.digest("manifest");
    if (newest_) {
      ASSERT_EQ(head.sequence, newest_->sequence + 1);
      ASSERT_GE(head.version, newest_->version);
      ASSERT_GE(head.generation, newest_->generation);
    }
    newest_ = head;
    const auto text = hub_->get(layout_.manifest(head.version));
    ASSERT_TRUE(text.ok()) << "head names a version without a manifest";
    ASSERT_EQ(sha256(text->bytes), head.manifest);
    const auto manifest = open_signed_json(as_text(text->bytes));
    ASSERT_TRUE(manifest.ok());
    const Sha256Digest state = JsonFields(manifest->body).digest("state");
    const auto [entry, first] = published_.emplace(head.version, state);
    ASSERT_EQ(entry->second, state) << "version " << head.version.value() << " was published twice";
    ASSERT_TRUE(states_.contains(state)) << "nobody made this state";
  }

  void train() {
    state_ = changed_state(description_, state_, {.integers = 0.03, .vectors = 0.1, .scales = 0.01}, random_);
  }

  struct Process {
    std::unique_ptr<FaultStore> store;
    std::unique_ptr<Publisher> publisher;
    // The publisher while it publishes: another thread's wishes come in between.
    std::shared_ptr<Publisher*> publishing = std::make_shared<Publisher*>(nullptr);
  };

  std::unique_ptr<FaultStore> faulty(FaultRates rates, std::shared_ptr<Publisher*> publishing = nullptr) {
    auto store =
        std::make_unique<FaultStore>(*hub_, rates, random_.next_u64(), [this, publishing](const StoreCall& call) {
          observe();
          // While head itself is read or written, wishes wait.
          if (publishing && *publishing != nullptr && call.key != layout_.head() && random_.below(6) == 0) {
            Publisher* const publisher = std::exchange(*publishing, nullptr);
            (void)publisher->update_head(RunState::kRunning, static_cast<std::int64_t>(random_.below(4)));
            *publishing = publisher;
          }
          return ok_status();
        });
    store->never_tear(layout_.head());  // nothing could tell a torn head from a forged one
    return store;
  }

  void start(Process& process, FaultRates rates) {
    process.store = faulty(rates, process.publishing);
    if (random_.below(2) == 0) {
      process.store->crash_at(random_.below(60), static_cast<CrashPoint>(random_.below(3)));
    }
    process.publisher.reset();
    auto opened = Publisher::open(*process.store, layout_, description_, test_key(), {4, 2}, null_event_sink());
    observe();
    if (opened.ok()) process.publisher = *std::move(opened);
  }

  Status publish(Process& process) {
    states_.emplace(state_digest(description_, state_), state_);
    *process.publishing = process.publisher.get();
    const auto report = process.publisher->publish(state_, 0);
    *process.publishing = nullptr;
    observe();
    if (report.ok()) {
      const auto known = published_.find(report->version);
      EXPECT_TRUE(known != published_.end() && known->second == report->state);
      EXPECT_EQ(report->state, state_digest(description_, state_));
      return ok_status();
    }
    const StatusCode code = report.status().code();
    EXPECT_NE(code, StatusCode::kInvalidArgument) << report.status().to_string();
    EXPECT_NE(code, StatusCode::kInternal) << report.status().to_string();
    return report.status();
  }

  static bool over(const Status& status) {
    return status.code() == StatusCode::kCancelled || status.code() == StatusCode::kFailedPrecondition;
  }
  // Tries until it is published, or the process is dead or fenced.
  Status publish_stubbornly(Process& process) {
    Status status = publish(process);
    for (int retry = 0; retry < 500 && !status.ok() && !over(status); ++retry) status = publish(process);
    return status;
  }

  struct Worker {
    std::unique_ptr<FaultStore> store;
    std::unique_ptr<StateHolder> subscriber;
  };

  void join(Worker& worker, FaultRates rates) {
    worker.store = faulty(rates);
    worker.subscriber = std::make_unique<StateHolder>(*worker.store, layout_, description_);
  }

  Status follow(Worker& worker) {
    const auto before = worker.subscriber->held();
    const auto head = worker.subscriber->poll();
    Status status = head.status();
    EXPECT_NE(status.code(), StatusCode::kFailedPrecondition) << status.to_string();
    if (head.ok()) {
      const auto pulled = worker.subscriber->pull();
      status = pulled.status();
      EXPECT_NE(status.code(), StatusCode::kFailedPrecondition) << status.to_string();
      if (!pulled.ok() && before) {
        EXPECT_EQ(worker.subscriber->held()->state, before->state);
      }
    }
    check(worker.subscriber->held());
    if (before) {
      EXPECT_GE(worker.subscriber->held()->version, before->version);
    }
    return status;
  }

  void check(const std::optional<PulledVersion>& held) {
    if (!held) return;
    const auto known = published_.find(held->version);
    ASSERT_NE(known, published_.end());
    ASSERT_EQ(known->second, held->state_digest);
    ASSERT_EQ(*held->state, states_.at(held->state_digest));
  }

  // Every version that was ever published can be fetched, by its number.
  void check_history() {
    Worker worker;
    join(worker, {});
    for (const auto& [version, digest] : published_) {
      const auto fetched = worker.subscriber->fetch(version);
      ASSERT_TRUE(fetched.ok()) << fetched.status().to_string();
      check(*fetched);
    }
  }

  const HubLayout layout_{"owner/run"};
  const ModelDescription description_ = tiny_description();
  const std::unique_ptr<ObjectStore> hub_ = make_memory_store();
  PhiloxStream random_;
  GridState state_;
  std::map<Sha256Digest, GridState> states_;
  std::map<Version, Sha256Digest> published_;
  std::optional<Head> newest_;
  Bytes newest_bytes_;
};

void run_schedule(std::uint64_t seed) {
  SCOPED_TRACE(fmt::format("seed {}", seed));
  World world(seed);
  PhiloxStream random(seed, 1);
  const double intensity = random.uniform() * 0.1;
  const FaultRates learner_faults{intensity, intensity, intensity / 2, intensity / 4};
  const FaultRates worker_faults{intensity, 0, 0, intensity};
  World::Process learner;
  World::Process old;  // a learner that does not know yet that it was replaced
  std::vector<World::Worker> workers(3);
  for (auto& worker : workers) world.join(worker, worker_faults);

  for (int step = 0; step < 25; ++step) {
    switch (random.below(8)) {
      case 0:
        if (learner.publisher && random.below(2) == 0) old = std::move(learner);
        learner = {};
        world.start(learner, learner_faults);
        break;
      case 1: world.join(workers[random.below(workers.size())], worker_faults); break;
      case 2:
        if (learner.publisher)
          (void)learner.publisher->update_head(RunState::kRunning, static_cast<std::int64_t>(random.below(4)));
        world.observe();
        break;
      case 3:
        if (old.publisher && World::over(world.publish(old))) old = {};
        break;
      default:
        if (!learner.publisher) world.start(learner, learner_faults);
        if (random.below(3) != 0) world.train();  // otherwise the same state once more
        if (learner.publisher && World::over(world.publish(learner))) learner = {};
        break;
    }
    (void)world.follow(workers[random.below(workers.size())]);
    if (::testing::Test::HasFailure()) return;
  }

  // The faults end.
  World::Process last;
  last.store = world.faulty({});
  auto opened = Publisher::open(*last.store, world.layout_, world.description_, test_key(), {4, 2}, null_event_sink());
  ASSERT_TRUE(opened.ok()) << opened.status().to_string();
  last.publisher = *std::move(opened);
  world.train();
  ASSERT_TRUE(world.publish(last).ok());
  if (old.publisher) {
    EXPECT_TRUE(World::over(world.publish_stubbornly(old)));
  }
  if (learner.publisher) {
    EXPECT_TRUE(World::over(world.publish_stubbornly(learner)));
  }
  for (auto& worker : workers) {
    Status status = world.follow(worker);
    for (int retry = 0; retry < 200 && !status.ok(); ++retry) status = world.follow(worker);
    ASSERT_TRUE(status.ok()) << status.to_string();
    EXPECT_EQ(worker.subscriber->held()->version, world.newest_->version);
    EXPECT_EQ(*worker.subscriber->held()->state, world.state_);
  }
  if (seed % 8 == 0) world.check_history();
}

class HubSimulation : public ::testing::TestWithParam<int> {
 protected:
  static void SetUpTestSuite() { set_log_level(LogLevel::kError); }
  static void TearDownTestSuite() { set_log_level(LogLevel::kInfo); }
};

TEST_P(HubSimulation, EverySubscriberHoldsOnlyWhatWasPublishedAndEndsInTheNewest) {
  constexpr int kSchedules = 250;
  for (int i = 0; i < kSchedules && !HasFailure(); ++i)
    run_schedule(static_cast<std::uint64_t>(GetParam() * kSchedules + i));
}

INSTANTIATE_TEST_SUITE_P(Seeds, HubSimulation, ::testing::Range(0, 8));

using HubCrash = HubSimulation;

TEST_F(HubCrash, ALearnerMayDieAtEveryOperation) {
  const auto life = [](World& world, FaultStore& store) -> Status {
    FLOTILLA_ASSIGN_OR_RETURN(const auto learner, Publisher::open(store, world.layout_, world.description_, test_key(),
                                                                  {2, 1}, null_event_sink()));
    for (int i = 0; i < 3; ++i) {
      world.train();
      world.states_.emplace(state_digest(world.description_, world.state_), world.state_);
      FLOTILLA_RETURN_IF_ERROR(learner->publish(world.state_, 0).status());
      FLOTILLA_RETURN_IF_ERROR(learner->update_head(RunState::kRunning, i));
    }
    return ok_status();
  };
  std::uint64_t operations = 0;
  {
    World world(1);
    const auto store = world.faulty({});
    ASSERT_TRUE(life(world, *store).ok());
    operations = store->operations();
  }
  ASSERT_GT(operations, 20u);
  for (const bool first_life : {true, false}) {
    for (std::uint64_t at = 0; at < operations + 2; ++at) {
      for (const CrashPoint point : {CrashPoint::kBefore, CrashPoint::kAfter, CrashPoint::kTorn}) {
        SCOPED_TRACE(fmt::format("crash {} at operation {}", static_cast<int>(point), at));
        World world(at);
        if (!first_life) {
          ASSERT_TRUE(life(world, *world.faulty({})).ok());
        }
        World::Worker worker;
        world.join(worker, {});
        const auto dying = world.faulty({});
        dying->crash_at(at, point);
        (void)life(world, *dying);
        world.observe();
        (void)world.follow(worker);
        const Status next_life = life(world, *world.faulty({}));
        ASSERT_TRUE(next_life.ok()) << next_life.to_string();
        world.observe();
        ASSERT_TRUE(world.follow(worker).ok());
        EXPECT_EQ(*worker.subscriber->held()->state, world.state_);
        world.check_history();
        if (HasFailure()) return;
      }
    }
  }
}

TEST_F(HubCrash, ALearnerMayBeReplacedAtEveryOperation) {
  for (const bool fresh : {true, false}) {
    bool replaced = true;
    for (std::uint64_t at = 0; replaced; ++at) {
      SCOPED_TRACE(fmt::format("replaced at operation {}", at));
      World world(at);
      const auto publish = [&](ObjectStore& store) -> Status {
        FLOTILLA_ASSIGN_OR_RETURN(const auto learner, Publisher::open(store, world.layout_, world.description_,
                                                                      test_key(), {2, 1}, null_event_sink()));
        world.train();
        const GridState state = world.state_;  // the other learner trains meanwhile
        world.states_.emplace(state_digest(world.description_, state), state);
        FLOTILLA_RETURN_IF_ERROR(learner->publish(state, 0).status());
        world.observe();
        return learner->publish(state, 0).status();
      };
      if (!fresh) {
        ASSERT_TRUE(publish(*world.faulty({})).ok());
      }
      replaced = false;
      FaultStore store(*world.hub_, {}, 1, [&](const StoreCall& call) {
        world.observe();
        if (call.index == at) {
          replaced = true;
          EXPECT_TRUE(publish(*world.faulty({})).ok());
          world.observe();
        }
        return ok_status();
      });
      const Status status = publish(store);
      world.observe();
      // It lost, unless the other one had finished before it began.
      EXPECT_TRUE(status.ok() || status.code() == StatusCode::kFailedPrecondition) << status.to_string();
      World::Worker worker;
      world.join(worker, {});
      ASSERT_TRUE(world.follow(worker).ok());
      world.check_history();
      if (HasFailure()) return;
    }
  }
}

}  // namespace
}  // namespace flotilla
