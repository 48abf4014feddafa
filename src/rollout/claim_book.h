#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "base/ids.h"
#include "base/philox.h"
#include "base/status.h"
#include "rollout/claim.h"
#include "rollout/epoch_scan.h"
#include "store/object_store.h"

namespace flotilla {

inline constexpr std::size_t kHeldBlocksMax = 8;  // unfinished ones of a worker; no more of a status count

// One operation of the hub that the book asks for.
struct ClaimCall {
  enum class Kind { kList, kGet, kExists, kCreate };
  Kind kind = Kind::kList;
  std::string key = {};  // for listings the prefix
  std::string after = {};
  std::size_t limit = 1000;
  std::string bytes = {};
};
// What came of it. Anything that may pass is to be tried again before.
struct ClaimAnswer {
  StatusCode code = StatusCode::kOk;  // or kNotFound, kAlreadyExists
  std::string bytes = {};
  ListPage page = {};
};

// What a worker's status says of a block that it holds.
struct HeldClaim {
  std::string sign_of_life;  // another one in each status
  std::uint64_t done = 0;    // bit i: task i of the block
};
// Nothing when the status does not name the claim.
std::optional<HeldClaim> find_held_claim(std::string_view status, const ClaimId& id);

// Which tasks are this worker's to do (docs/formats/claims.md). It claims block after block, of the first epoch that
// has a free one; takes over blocks whose holders show no sign of life for the time of a lease, by its own clock; gives
// up what others have taken over; and says when a block is done. Pure: time, random numbers and the hub's answers are
// arguments. What save() writes outlives the process. Not thread safe.
class ClaimBook {
 public:
  struct Options {
    HubLayout layout;
    WorkerId worker;
    TaskOrder order;
    std::chrono::nanoseconds lease{0};
    std::uint64_t seed = 0;  // of what it looks at
    std::function<std::string(const ClaimId&)> write;
    // Who holds the claim; nothing when the object is none.
    std::function<std::optional<WorkerId>(const ClaimId&, std::string_view)> read;
    // Where a group lies that was made beginning with this version.
    std::function<std::string(std::uint64_t counter, Version)> group_key;
  };
  using Time = std::chrono::nanoseconds;

  explicit ClaimBook(Options options) : options_(std::move(options)), random_(options_.seed, 0) {}
  // Goes on from what save() wrote. data_loss.
  Status restore(std::string_view text);
  std::string save() const;
  // Changes with what save() writes.
  std::uint64_t revision() const { return revision_; }

  // The next operation, the same one until it is answered; none when nothing is to be done for now and `wanted` tasks
  // can be taken, or as many as a worker may hold.
  std::optional<ClaimCall> next_call(std::int64_t wanted, Time now);
  void answer(const ClaimAnswer& answer, Time now);

  // Tasks that take() could give.
  std::int64_t available(Time now) const;
  // Counters of tasks to do, each given once; perhaps fewer.
  std::vector<std::uint64_t> take(std::int64_t count, Time now);
  // The group is made, and about to be uploaded; and it is on the hub. Save in between: then a life that ends here
  // leaves nothing to be done twice.
  void made(std::uint64_t counter, Version version);
  void uploaded(std::uint64_t counter);

  // For the status: [{"epoch", "block", "lease", "done"}].
  nlohmann::json held() const;
  // The claim that was made last, once.
  std::optional<ClaimId> take_news() { return std::exchange(news_, std::nullopt); }

 private:
  struct Block {
    ClaimId id;
    std::uint64_t all = 0;   // its tasks, a bit each; without those that were given up
    std::uint64_t done = 0;  // on the hub
    std::uint64_t out = 0;   // taken, and not done
    std::map<std::uint64_t, Version> made = {};
    bool lost = false;  // to another worker
    std::optional<Time> checked = {};
    std::uint64_t junk = 0;  // next leases that nobody holds
    bool restored = false;   // what is in `made` may be on the hub

    std::uint64_t open() const { return all & ~done & ~out; }
  };
  struct Watch {              // of a claim of another worker, until it shows a sign of life
    ClaimId id;               // the last lease
    std::uint64_t lease = 0;  // that the holder has: the last one that is a claim
    bool read = false;
    std::optional<WorkerId> holder = {};
    std::optional<Time> since = {};
    std::string sign_of_life = {};
    std::uint64_t done = 0;
  };
  enum class Step {
    kLowest,
    kScan,
    kLookBack,
    kHolder,
    kStatus,
    kIsDone,
    kTakeOver,
    kTakeOverRead,
    kClaim,
    kClaimRead
  };
  enum class Purpose { kMade, kMark, kOwn, kSearch };

  std::optional<ClaimCall> plan(std::int64_t wanted, Time now);
  bool usable(const Block& block, Time now) const { return block.checked && now - *block.checked < options_.lease; }
  Block& block_of(std::uint64_t counter);
  static ClaimId lease_after(const Block& block);

  ClaimCall search_call() const;
  void search(const ClaimAnswer& answer, Time now);
  void scan(std::uint64_t epoch);
  void scanned();
  void look_back(const ListPage& page);
  void watch_from(std::size_t index, Time now);
  void judge(const std::optional<HeldClaim>& held, Time now);
  void drop_watch(Time now);
  void hold(const ClaimId& id, std::uint64_t done, Time now);
  ClaimId held_lease() const;
  ClaimId next_lease() const;

  const Options options_;
  PhiloxStream random_;
  std::uint64_t revision_ = 0;
  std::vector<Block> blocks_;  // oldest first
  std::optional<ClaimId> news_;

  std::optional<ClaimCall> call_;  // that is not answered
  Purpose purpose_ = Purpose::kSearch;
  std::size_t subject_ = 0;  // of blocks_

  std::optional<std::uint64_t> open_;  // the first epoch that is not known to be claimed as a whole
  // The search for a block, while there is one.
  std::optional<Step> step_;
  std::optional<EpochScan> scan_;
  std::uint64_t probe_ = 0;             // the epoch of scan_
  std::uint64_t stride_ = 1;            // of the next probe
  std::optional<std::uint64_t> above_;  // an epoch that has a free block
  ClaimId candidate_;
  bool looked_back_ = false;
  std::string look_back_after_;
  std::vector<Watch> watches_;
  std::size_t watch_ = 0;
};

}  // namespace flotilla
