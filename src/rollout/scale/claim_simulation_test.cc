// Workers that claim, die, begin again with or without their file, and stand still; clocks that are minutes off;
// requests that are lost, delayed, applied twice, or answered by nobody: thousands of seeded histories of days. What
// must hold:
//   - a task is done by two workers only if a lease ran out: its holder's status was silent for about as long as that;
//   - a life never does again what an earlier life of the same worker has brought to the hub while it
//     lived, unless others have held the block;
//   - every task of every epoch is done in the end;
//   - blocks are claimed as ClaimLedger allows.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <tuple>

#include <fmt/format.h>

#include "rollout/claim_book.h"
#include "rollout/claim_ledger.h"
#include "rollout/worker_counter.h"
#include "store/object_store.h"

namespace flotilla {
namespace {

using std::chrono::minutes;
using std::chrono::nanoseconds;
using std::chrono::seconds;
using Time = nanoseconds;

constexpr Time kLease = minutes(15);
constexpr Time kTimeout = seconds(30);  // until a request is tried again
constexpr Time kStatusInterval = minutes(1);

struct Totals {
  std::int64_t histories = 0, groups = 0, requests = 0, claims = 0, taken_over = 0, deaths = 0, done_twice = 0;
};

class World {
 public:
  World(std::uint64_t seed, bool signs, Totals& totals) : random_(seed, 0), totals_(totals) {
    const std::uint64_t block_tasks = random_.below(3) == 0 ? 4 + random_.below(60) : kClaimTasksMax;
    order_ = {.seed = seed, .tasks = 1 + random_.below(6 * block_tasks), .block_tasks = block_tasks};
    faults_ = random_.uniform() * 0.2;
    bring(1 + random_.below(6), signs, minutes(30));
    at(some(minutes(200)), [this] { hold_back(); });
  }
  // Without faults.
  World(const TaskOrder& order, std::size_t workers, Totals& totals) : random_(1, 0), totals_(totals), order_(order) {
    calm_ = true;
    bring(workers, false, minutes(1));
  }

  void run() {
    play(minutes(60) * (2 + random_.below(7)));
    // The faults end, and all come back.
    calm_ = true;
    held_back_ = false;
    const std::uint64_t epochs = newest_epoch() + 1;
    for (Worker& worker : workers_) {
      if (!worker.book) begin(worker);
    }
    const Time begin = now_;
    while (!all_done(epochs) && now_ - begin < minutes(60 * 24 * 2)) play(now_ + minutes(10));
    for (std::uint64_t counter = 0; counter < epochs * order_.tasks; ++counter) {
      ASSERT_TRUE(groups_.contains(counter)) << "task " << counter % order_.tasks << " of epoch "
                                             << order_.epoch_of(counter) << " of " << epochs << " is not done";
    }
    ++totals_.histories;
    totals_.groups += std::ssize(groups_);
  }

  void run_for(Time time) {
    play(time);
    totals_.groups += std::ssize(groups_);
  }

  void check_ledger() {
    ClaimLedger ledger(*hub_, layout_, order_);
    for (const auto& [counter, makers] : groups_) {
      for (const WorkerId& maker : makers) {
        const Status status = ledger.check(maker, counter);
        ASSERT_TRUE(status.ok()) << status.to_string();
      }
    }
  }

 private:
  struct Worker {
    WorkerId id;
    std::shared_ptr<const SigningKey> key;
    double pace = 1;
    std::int64_t sweep = 1;
    std::string file;                 // that outlives a life
    std::unique_ptr<ClaimBook> book;  // of a life
    std::uint64_t life = 0;           // events of an earlier one are void
    std::uint64_t request = 0;        // the one whose answer counts
    bool asking = false;
    std::int64_t in_flight = 0;  // groups
    double clock_rate = 1;
    Time clock_zero{0};
    Time wall_skew{0};
    std::set<std::uint64_t> delivered_before;  // by earlier lives
  };
  struct Lease {
    WorkerId holder;
    Time last_sign{0};
    Time longest_silence{0};
  };

  Time some(Time most) {
    return Time(static_cast<std::int64_t>(random_.uniform() * static_cast<double>(most.count())));
  }
  bool chance(double probability) { return !calm_ && random_.uniform() < probability; }
  void at(Time when, std::function<void()> what) { events_.emplace(when, std::move(what)); }
  void play(Time until) {
    while (!events_.empty() && events_.begin()->first <= until) {
      auto event = events_.extract(events_.begin());
      now_ = event.key();
      event.mapped()();
    }
    now_ = until;
  }
  // Only while the worker lives this life.
  void later(Worker& worker, Time delay, std::function<void()> what) {
    at(now_ + delay, [life = worker.life, &worker, what = std::move(what)] {
      if (worker.book && worker.life == life) what();
    });
  }
  Time clock(const Worker& worker) const {
    return worker.clock_zero + Time(static_cast<std::int64_t>(static_cast<double>(now_.count()) * worker.clock_rate));
  }

  void bring(std::size_t workers, bool signs, Time within) {
    workers_.resize(workers);
    for (std::size_t i = 0; i < workers_.size(); ++i) {
      Worker& worker = workers_[i];
      if (signs) worker.key = SigningKey::generate().value();
      worker.id = signs ? worker_id(worker.key->public_key()) : WorkerId(fmt::format("worker{}", i));
      worker.pace = 0.2 + random_.uniform();  // minutes a group
      worker.sweep = static_cast<std::int64_t>(1 + random_.below(16));
      at(some(within), [this, &worker] { begin(worker); });
    }
    at(minutes(5), [this] { publish(); });
  }

  void begin(Worker& worker) {
    ++worker.life;
    worker.asking = false;
    worker.in_flight = 0;
    worker.clock_rate = 0.99 + 0.02 * random_.uniform();
    worker.clock_zero = some(minutes(100'000));
    worker.wall_skew = some(minutes(20)) - minutes(10);
    worker.book = std::make_unique<ClaimBook>(ClaimBook::Options{
        .layout = layout_,
        .worker = worker.id,
        .order = order_,
        .lease = kLease,
        .seed = random_.next_u64(),
        .write =
            [this, &worker](const ClaimId& id) {
              if (worker.key) return claim_to_json(layout_.prefix, id, *worker.key);
              return fmt::format("{} {} {} {}", worker.id.value(), id.epoch, id.block, id.lease);
            },
        .read = [this](const ClaimId& id, std::string_view text) -> std::optional<WorkerId> {
          if (!workers_[0].key) return WorkerId(std::string(text.substr(0, text.find(' '))));
          return claim_holder(text, layout_.prefix, id).value();
        },
        .group_key = [this, &worker](std::uint64_t counter,
                                     Version version) { return group_key(worker, counter, version); }});
    if (!worker.file.empty()) {
      const Status restored = worker.book->restore(worker.file);
      ASSERT_TRUE(restored.ok()) << restored.to_string();
      worker.delivered_before.clear();
      for (const auto& claim : worker.book->held()) {
        for (std::uint64_t index = 0; index < order_.size(claim["block"]); ++index) {
          const std::uint64_t counter = order_.counter(claim["epoch"], claim["block"], index);
          const auto makers = groups_.find(counter);
          if (late_.contains({worker.id, counter})) continue;
          if (makers == groups_.end() || !makers->second.contains(worker.id)) continue;
          worker.delivered_before.insert(counter);
        }
      }
    }
    if (!calm_) at(now_ + some(minutes(60 * 5)), [this, &worker, life = worker.life] { end(worker, life); });
    heartbeat(worker);
    act(worker);
  }

  void end(Worker& worker, std::uint64_t life) {
    if (worker.life != life || !worker.book || calm_) return;
    worker.book.reset();
    ++totals_.deaths;
    if (random_.below(10) == 0) {
      worker.file.clear();
      worker.delivered_before.clear();  // it does not know, and the learner counts each once
    }
    if (random_.below(3) != 0) {
      at(now_ + some(minutes(40)), [this, &worker, life] {
        if (worker.life == life && !worker.book) begin(worker);
      });
    }
  }

  void publish() {
    ++version_;
    at(now_ + minutes(5), [this] { publish(); });
  }
  void hold_back() {
    held_back_ = !held_back_ && !calm_;
    at(now_ + (held_back_ ? some(minutes(90)) : some(minutes(400))), [this] { hold_back(); });
    for (Worker& worker : workers_) {
      if (worker.book) later(worker, some(seconds(2)), [this, &worker] { act(worker); });
    }
  }

  // Everything that the worker can do now.
  void act(Worker& worker) {
    ask(worker);
    if (held_back_ || worker.in_flight > 0) return;
    for (const std::uint64_t counter : worker.book->take(worker.sweep, clock(worker))) {
      ASSERT_TRUE(!worker.delivered_before.contains(counter) || taken_over(counter)) << "done again by a later life";
      ++worker.in_flight;
      later(worker, Time(static_cast<std::int64_t>(worker.pace * 60e9 * (0.2 + random_.uniform()))),
            [this, &worker, counter] {
              const Version version(version_);
              worker.book->made(counter, version);
              worker.file = worker.book->save();
              upload(worker, counter, version);
            });
    }
    ask(worker);
  }

  void ask(Worker& worker) {
    if (worker.asking || held_back_) return;
    const auto call = worker.book->next_call(worker.sweep, clock(worker));
    if (!call) return;
    worker.asking = true;
    ++totals_.requests;
    const std::uint64_t number = ++worker.request;
    const auto again = [this, &worker, number] {
      if (worker.request != number) return;
      worker.asking = false;
      act(worker);
    };
    later(worker, kTimeout, again);
    request(
        worker, [this, &worker, call = *call] { return perform(worker, call); },
        [this, &worker, number](const ClaimAnswer& answer) {
          if (worker.request != number) return;
          ++worker.request;
          worker.asking = false;
          worker.book->answer(answer, clock(worker));
          worker.file = worker.book->save();
          act(worker);
        });
  }

  // The hub sees it late, twice or never; so does the worker the answer.
  void request(Worker& worker, std::function<ClaimAnswer()> what, std::function<void(const ClaimAnswer&)> answered) {
    if (chance(faults_)) return;
    const auto trip = [this] { return chance(faults_) ? some(minutes(3)) : some(seconds(1)); };
    const Time there = trip(), back = trip();
    const bool lost = chance(faults_);
    at(now_ + there, [this, &worker, life = worker.life, what, answered = std::move(answered), back, lost] {
      const ClaimAnswer answer = what();
      if (lost) return;
      at(now_ + back, [&worker, life, answer, answered] {
        if (worker.book && worker.life == life) answered(answer);
      });
    });
    if (chance(faults_)) at(now_ + there + trip(), [what = std::move(what)] { (void)what(); });
  }

  ClaimAnswer perform(const Worker& worker, const ClaimCall& call) {
    ClaimAnswer answer;
    switch (call.kind) {
      case ClaimCall::Kind::kList: answer.page = hub_->list(call.key, call.after, call.limit).value(); break;
      case ClaimCall::Kind::kGet: {
        const auto object = hub_->get(call.key);
        answer.code = object.status().code();
        if (object.ok()) answer.bytes = as_text(object->bytes);
        break;
      }
      case ClaimCall::Kind::kExists: answer.code = hub_->head(call.key).status().code(); break;
      case ClaimCall::Kind::kCreate:
        answer.code = hub_->put_if_absent(call.key, as_bytes(call.bytes)).status().code();
        if (answer.code == StatusCode::kOk) created(worker, call.key);
        break;
    }
    return answer;
  }

  void created(const Worker& worker, const std::string& key) {
    const ClaimName name = read_claim_key(layout_, key).value();
    if (name.done_by) return;
    ++totals_.claims;
    if (name.id.lease > 0) {
      ++totals_.taken_over;
      const Lease& before = leases_.at({name.id.epoch, name.id.block, name.id.lease - 1});
      const Time silence = std::max(before.longest_silence, now_ - before.last_sign);
      EXPECT_GE(silence, kLease * 9 / 10) << "lease " << name.id.lease << " of block " << name.id.block;
    }
    leases_[name.id] = {worker.id, now_, Time(0)};
  }

  void heartbeat(Worker& worker) {
    const nlohmann::json status = {
        {"claims", worker.book->held()},
        {"time_ms", std::chrono::duration_cast<std::chrono::milliseconds>(now_ + worker.wall_skew).count()}};
    request(
        worker,
        [this, &worker, status] {
          EXPECT_TRUE(hub_->put(layout_.worker_status(worker.id), as_bytes(status.dump())).ok());
          for (const auto& claim : status["claims"]) {
            const auto lease = leases_.find({claim["epoch"], claim["block"], claim["lease"]});
            if (lease == leases_.end()) continue;
            Lease& held = lease->second;
            held.longest_silence = std::max(held.longest_silence, now_ - held.last_sign);
            held.last_sign = now_;
          }
          return ClaimAnswer{};
        },
        [](const ClaimAnswer&) {});
    later(worker, kStatusInterval, [this, &worker] { heartbeat(worker); });
    later(worker, kStatusInterval / 2, [this, &worker] { act(worker); });
  }

  std::string group_key(const Worker& worker, std::uint64_t counter, Version version) const {
    return layout_.rollout(version, worker.id, GroupId(fmt::format("{}", counter)));
  }

  void upload(Worker& worker, std::uint64_t counter, Version version) {
    const auto done = std::make_shared<bool>(false);
    later(worker, kTimeout, [this, &worker, counter, version, done] {
      if (!*done) upload(worker, counter, version);
    });
    request(
        worker,
        [this, &worker, counter, version, life = worker.life] {
          (void)hub_->put_if_absent(group_key(worker, counter, version), {});
          // The next life has asked for it in vain.
          if (worker.life != life || !worker.book) late_.emplace(worker.id, counter);
          auto& makers = groups_[counter];
          if (makers.insert(worker.id).second && makers.size() > 1) {
            ++totals_.done_twice;
            EXPECT_TRUE(taken_over(counter)) << "done twice within one lease";
          }
          return ClaimAnswer{};
        },
        [this, &worker, counter, done](const ClaimAnswer&) {
          if (*done || !uploaded_.emplace(worker.id, worker.life, counter).second) return;
          *done = true;
          --worker.in_flight;
          worker.book->uploaded(counter);
          if (chance(0.1)) return end(worker, worker.life);  // before it is on the disk
          worker.file = worker.book->save();
          act(worker);
        });
  }

  bool taken_over(std::uint64_t counter) const {
    return leases_.contains({order_.epoch_of(counter), order_.block_of(counter), 1});
  }
  std::uint64_t newest_epoch() const { return leases_.empty() ? 0 : leases_.rbegin()->first.epoch; }
  bool all_done(std::uint64_t epochs) const {
    for (std::uint64_t counter = 0; counter < epochs * order_.tasks; ++counter) {
      if (!groups_.contains(counter)) return false;
    }
    return true;
  }

  PhiloxStream random_;
  Totals& totals_;
  const HubLayout layout_{"owner/run"};
  const std::unique_ptr<ObjectStore> hub_ = make_memory_store();
  TaskOrder order_;
  double faults_ = 0;
  bool calm_ = false;
  bool held_back_ = false;
  std::uint64_t version_ = 0;
  Time now_{0};
  std::multimap<Time, std::function<void()>> events_;
  std::vector<Worker> workers_;
  std::map<ClaimId, Lease> leases_;
  std::map<std::uint64_t, std::set<WorkerId>> groups_;  // by counter: who has made it
  std::set<std::tuple<WorkerId, std::uint64_t, std::uint64_t>> uploaded_;
  std::set<std::pair<WorkerId, std::uint64_t>> late_;  // came to the hub after the life that had sent them
};

double requests_a_task(const Totals& totals) {
  return static_cast<double>(totals.requests) / static_cast<double>(totals.groups);
}

void tell(const Totals& totals) {
  fmt::print(
      "{} histories: {} tasks, {} claims, {} of them taken over, {} deaths, {} tasks done twice, {:.3f} requests a "
      "task\n",
      totals.histories, totals.groups, totals.claims, totals.taken_over, totals.deaths, totals.done_twice,
      requests_a_task(totals));
}

class ClaimSimulation : public ::testing::TestWithParam<int> {};

TEST_P(ClaimSimulation, EveryTaskIsDoneAndNoneTwiceWithinALease) {
  constexpr int kHistories = 250;
  Totals totals;
  for (int i = 0; i < kHistories && !HasFailure(); ++i) {
    const auto seed = static_cast<std::uint64_t>(GetParam() * kHistories + i);
    SCOPED_TRACE(fmt::format("seed {}", seed));
    World world(seed, i % 25 == 0, totals);
    world.run();
    if (i % 25 == 0) world.check_ledger();
  }
  tell(totals);
  EXPECT_LT(requests_a_task(totals), 1);
}

// As many tasks as WordNet has nouns: two epochs and their ends, where all look for the last free blocks.
TEST(ClaimFleet, AThousandWorkersAskForLittle) {
  Totals totals;
  World world({.seed = 1, .tasks = 82'115, .block_tasks = kClaimTasksMax}, 1000, totals);
  world.run_for(minutes(15));
  tell(totals);
  EXPECT_EQ(totals.done_twice, 0);
  EXPECT_EQ(totals.taken_over, 0);
  EXPECT_LT(requests_a_task(totals), 0.4);
}

INSTANTIATE_TEST_SUITE_P(Seeds, ClaimSimulation, ::testing::Range(0, 8));

}  // namespace
}  // namespace flotilla
