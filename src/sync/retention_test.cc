#include "sync/retention.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <set>

#include <fmt/format.h>

#include "base/philox.h"

namespace flotilla {
namespace {

using std::chrono::hours;
using std::chrono::minutes;
using std::chrono::seconds;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr seconds kBegin = hours(24 * 365);
constexpr std::int64_t kNone = -1;  // of bases

// A hub without bytes: keys, and what the manifests would say.
class Shelf {
 public:
  void put(const std::string& key) { objects[key] = {.key = key, .size = 10, .etag = {}, .modified = now}; }
  // A version with its skips; `manifest` false: what a learner leaves that dies between payload and manifest.
  void publish(std::uint64_t number, std::int64_t base, bool anchor, bool manifest = true) {
    const Version version(number);
    if (base >= 0) put(layout.delta(version));
    if (base > 2) put(fmt::format("{}/skip-{}", layout.weights(version), base - 2));
    if (anchor) put(layout.anchor(version));
    if (!manifest) return;
    put(layout.manifest(version));
    links[version].anchor = anchor;
    if (base >= 0) links[version].base = Version(static_cast<std::uint64_t>(base));
  }
  void upload(std::uint64_t oldest, const std::string& group) {
    put(layout.rollout(Version(oldest), WorkerId("w"), GroupId(group)));
  }

  RetentionView view() const {
    RetentionView view{.head = Version(head), .objects = {}, .leases = leases, .now = now};
    for (const auto& [key, object] : objects) view.objects.push_back(object);
    return view;
  }
  Result<RetentionPlan> plan(const RetentionRules& rules = {}) const { return plan_of(view(), rules); }
  Result<RetentionPlan> plan_of(const RetentionView& view, const RetentionRules& rules = {}) const {
    return plan_retention(layout, view, rules,
                          [this](Version version) -> Result<VersionLinks> { return links.at(version); });
  }
  std::vector<std::uint64_t> versions() const {
    std::set<std::uint64_t> found;
    for (const auto& [key, object] : objects) {
      if (key.starts_with(layout.weights_folder())) {
        found.insert(std::stoull(key.substr(layout.weights_folder().size(), 10)));
      }
    }
    return {found.begin(), found.end()};
  }
  void carry_out(const RetentionPlan& plan) {
    for (const ObjectInfo& object : plan.remove) objects.erase(object.key);
  }
  void clean(const RetentionRules& rules = {}) { carry_out(plan(rules).value()); }

  // There, and readable from an anchor on.
  bool is_whole(Version version) const {
    if (!objects.contains(layout.manifest(version))) return false;
    const VersionLinks& link = links.at(version);
    if (link.base && !objects.contains(layout.delta(version))) return false;
    if (link.anchor) return objects.contains(layout.anchor(version));
    return link.base && is_whole(*link.base);
  }

  const HubLayout layout{"owner/run"};
  std::map<std::string, ObjectInfo> objects;
  std::map<Version, VersionLinks> links;
  std::vector<Lease> leases;
  std::uint64_t head = 0;
  seconds now = kBegin;
};

// Versions 0 to `last`, an anchor every five, each a delta to the one before.
Shelf shelf_of(std::uint64_t last) {
  Shelf shelf;
  for (std::uint64_t i = 0; i <= last; ++i) {
    shelf.publish(i, static_cast<std::int64_t>(i) - 1, i % 5 == 0);
  }
  shelf.head = last;
  return shelf;
}

TEST(Retention, KeepsTheFirstVersionAndThoseSinceTheLastAnchorButOne) {
  Shelf shelf = shelf_of(17);
  const auto plan = shelf.plan();
  ASSERT_TRUE(plan.ok()) << plan.status().to_string();
  EXPECT_EQ(plan->versions, 9u);
  EXPECT_EQ(plan->remove_bytes + plan->kept_bytes, 10 * shelf.objects.size());
  shelf.carry_out(*plan);
  EXPECT_THAT(shelf.versions(), ElementsAre(0, 10, 11, 12, 13, 14, 15, 16, 17));
  EXPECT_THAT(shelf.plan()->remove, IsEmpty());
}

TEST(Retention, OfAVersionTheManifestGoesFirstAndTheNewestVersionBeforeItsBases) {
  const auto plan = shelf_of(17).plan();
  std::vector<std::string> keys;
  for (const ObjectInfo& object : plan->remove)
    keys.push_back(object.key.substr(sizeof("owner/run/weights/00000000") - 1));
  keys.resize(6);
  EXPECT_THAT(keys,
              ElementsAre("09/manifest.json", "09/delta", "09/skip-6", "08/manifest.json", "08/delta", "08/skip-5"));
}

TEST(Retention, ALeaseKeepsItsVersionsAndTheirWayAndRunsOut) {
  Shelf shelf = shelf_of(27);
  shelf.leases = {{.versions = {Version(7), Version(999)}, .written = shelf.now - minutes(59)}};
  Shelf later = shelf;
  shelf.clean();
  EXPECT_THAT(shelf.versions(), ElementsAre(0, 5, 6, 7, 20, 21, 22, 23, 24, 25, 26, 27));
  later.now += minutes(1);
  later.clean();
  EXPECT_THAT(later.versions(), ElementsAre(0, 20, 21, 22, 23, 24, 25, 26, 27));
}

TEST(Retention, AWorkersStatusIsItsLease) {
  EXPECT_THAT(leased_versions(R"({"format":1,"version":12,"newest":14})"), ElementsAre(Version(12), Version(14)));
  EXPECT_THAT(leased_versions(R"({"version":null,"newest":14})"), ElementsAre(Version(14)));
  for (const char* text : {"", "{", "[1]", "{}", R"({"version":-1})", R"({"version":"3"})", R"({"version":1.5})"}) {
    EXPECT_THAT(leased_versions(text), IsEmpty()) << text;
  }
}

TEST(Retention, GroupsThatMayBeTrainedOnStayAndOthersGoWhenTheirTimeIsOver) {
  Shelf shelf = shelf_of(27);
  for (const std::uint64_t version : {3, 12, 23, 24, 27}) shelf.upload(version, fmt::format("old{}", version));
  shelf.now += hours(23);
  shelf.upload(12, "young");
  shelf.now += hours(1);
  shelf.clean();
  std::vector<std::string> groups;
  for (const auto& [key, object] : shelf.objects) {
    if (key.starts_with(shelf.layout.rollouts())) groups.push_back(key.substr(key.rfind('/') + 1));
  }
  EXPECT_THAT(groups, ElementsAre("young", "old24", "old27"));
  // What the young one may be made of stays; the way down to an anchor too.
  EXPECT_THAT(shelf.versions(), ElementsAre(0, 10, 11, 12, 13, 14, 15, 20, 21, 22, 23, 24, 25, 26, 27));
}

TEST(Retention, AGroupOfAVersionThatIsNoneIsRemovedInTime) {
  Shelf shelf = shelf_of(3);
  shelf.upload(1000, "future");
  shelf.put("owner/run/rollouts/x");
  EXPECT_THAT(shelf.plan()->remove, IsEmpty());
  shelf.now += hours(24);
  EXPECT_EQ(shelf.plan()->groups, 2u);
}

TEST(Retention, AGroupAboveHeadMayBeOfAVersionThatHasComeSinceAndStaysADay) {
  Shelf shelf = shelf_of(27);
  shelf.upload(12, "old");
  shelf.upload(28, "new");
  const RetentionRules strict{.groups = {}};
  EXPECT_EQ(shelf.plan(strict)->groups, 1u);
  shelf.now += hours(23);
  EXPECT_EQ(shelf.plan(strict)->groups, 1u);
  shelf.now += hours(1);
  EXPECT_EQ(shelf.plan(strict)->groups, 2u);
}

TEST(Retention, ADamagedManifestStaysAloneAndEndsNoLookUnlessHeadNeedsIt) {
  Shelf shelf = shelf_of(27);
  shelf.leases = {{.versions = {Version(7)}, .written = shelf.now}};
  const auto plan_without = [&](std::uint64_t damaged, Status status) {
    return plan_retention(shelf.layout, shelf.view(), {}, [&](Version version) -> Result<VersionLinks> {
      if (version == Version(damaged)) return status;
      return shelf.links.at(version);
    });
  };
  for (const Status& status : {data_loss("torn"), permission_denied("not the learner's")}) {
    const auto plan = plan_without(7, status);
    ASSERT_TRUE(plan.ok()) << plan.status().to_string();
    shelf.carry_out(*plan);
    EXPECT_THAT(shelf.versions(), ElementsAre(0, 7, 20, 21, 22, 23, 24, 25, 26, 27));
    EXPECT_EQ(plan_without(26, status).status().code(), status.code()) << "on the way from head";
  }
  EXPECT_EQ(plan_without(7, unavailable("away")).status().code(), StatusCode::kUnavailable);
}

TEST(Retention, WhatIsOfUnknownAgeIsYoung) {
  Shelf shelf = shelf_of(27);
  shelf.upload(3, "group");
  for (auto& [key, object] : shelf.objects) object.modified = seconds(0);
  shelf.now += hours(1000);
  EXPECT_EQ(shelf.plan()->groups, 0u);
}

TEST(Retention, EpochsOfClaimsGoWholeADayAfterTheirLast) {
  Shelf shelf = shelf_of(0);
  shelf.put("owner/run/claims/8/a");
  shelf.put("owner/run/claims/9/a");
  shelf.now += hours(23);
  shelf.put("owner/run/claims/8/b");
  for (const char* last : {"10/a", "11/a", "12/a"}) shelf.put(std::string("owner/run/claims/") + last);
  shelf.now += hours(23);
  EXPECT_THAT(shelf.plan()->remove, IsEmpty()) << "not one claim of an epoch, and no epoch before a lower one";
  shelf.now += hours(1);
  std::vector<std::string> removed;
  const RetentionPlan plan = shelf.plan().value();
  for (const ObjectInfo& object : plan.remove) removed.push_back(object.key);
  EXPECT_THAT(removed, ::testing::ElementsAre("owner/run/claims/8/a", "owner/run/claims/8/b", "owner/run/claims/9/a"));
  shelf.now += hours(1000);
  EXPECT_EQ(shelf.plan()->claims, 3u) << "the last three epochs stay";
}

TEST(Retention, FarClaimsRemoveNoEpochOfThePresent) {
  Shelf shelf = shelf_of(0);
  // Somebody claims a removed epoch and some that nobody has come to.
  for (const int epoch : {2, 8, 9, 10, 11, 500, 700, 701, 702}) {
    shelf.put(fmt::format("owner/run/claims/{}/a", epoch));
  }
  shelf.put("owner/run/claims/18446744073709551615/a");
  shelf.now += hours(1000);
  std::vector<std::string> removed;
  const RetentionPlan plan = shelf.plan().value();
  for (const ObjectInfo& object : plan.remove) removed.push_back(object.key);
  EXPECT_THAT(removed, ElementsAre("owner/run/claims/8/a"));
}

TEST(Retention, WhatALearnerLeftBelowHeadGoesAndAboveItStays) {
  Shelf shelf = shelf_of(17);
  shelf.publish(18, 17, false, false);  // died before the manifest
  shelf.publish(19, 17, true);          // died before head
  Shelf later = shelf;
  shelf.clean();
  EXPECT_THAT(shelf.versions(), ElementsAre(0, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19));
  later.publish(20, kNone, true);
  later.head = 20;
  later.clean({.staleness = 1});
  EXPECT_THAT(later.versions(), ElementsAre(0, 19, 20)) << "19 is whole, and an anchor";
}

TEST(Retention, AListingThatLacksWhatHeadNamesRemovesNothing) {
  Shelf shelf = shelf_of(17);
  RetentionView empty = shelf.view();
  empty.objects.clear();
  EXPECT_EQ(shelf.plan_of(empty).status().code(), StatusCode::kUnavailable);
  EXPECT_THAT(shelf.plan_of(empty).status().message(), HasSubstr("nothing is removed"));
  // One object of head's way is missing from a page.
  for (const std::string& key :
       {shelf.layout.manifest(Version(17)), shelf.layout.manifest(Version(16)), shelf.layout.anchor(Version(15))}) {
    RetentionView partial = shelf.view();
    std::erase_if(partial.objects, [&](const ObjectInfo& object) { return object.key == key; });
    if (key == shelf.layout.anchor(Version(15))) {
      // The way goes on to the anchor below.
      EXPECT_TRUE(shelf.plan_of(partial).ok());
    } else {
      EXPECT_EQ(shelf.plan_of(partial).status().code(), StatusCode::kUnavailable) << key;
    }
  }
  const auto unread = plan_retention(shelf.layout, shelf.view(), {},
                                     [](Version) -> Result<VersionLinks> { return unavailable("the hub is away"); });
  EXPECT_EQ(unread.status().code(), StatusCode::kUnavailable);
}

// Histories of a run at random: versions, learners that die and go back, workers with and without leases, groups,
// clean-ups that are interrupted anywhere, listings that fail.
class History {
 public:
  explicit History(std::uint64_t seed) : random_(seed, 0) {
    shelf_.publish(0, kNone, true);
    rules_.staleness = random_.below(6);
    anchor_every_ = 1 + random_.below(8);
  }

  void run() {
    const std::uint64_t steps = 20 + random_.below(80);
    for (std::uint64_t i = 0; i < steps && !::testing::Test::HasFailure(); ++i) step();
    clean(false);
    clean(false);
    // Nothing is forgotten for good.
    const auto rest = shelf_.plan(rules_);
    ASSERT_TRUE(rest.ok());
    EXPECT_THAT(rest->remove, IsEmpty());
    for (const std::uint64_t version : shelf_.versions()) {
      if (version > shelf_.head) continue;
      EXPECT_TRUE(shelf_.is_whole(Version(version))) << "version " << version << " is neither whole nor gone";
    }
  }

 private:
  struct Reader {
    std::uint64_t holds = 0;
    std::optional<std::uint64_t> fetches;
    seconds renewed{0};
    bool has_lease = false;
  };

  bool chance(double share) { return random_.uniform() < share; }

  void step() {
    shelf_.now += seconds(random_.below(chance(0.1) ? 30 * 3600 : 1200));
    switch (random_.below(9)) {
      case 0: return clean(chance(0.5));
      case 1: return clean_by_a_bad_listing();
      case 2: return a_reader_comes_or_goes();
      case 3: return a_reader_acts();
      case 4: return upload();
      default: return publish();
    }
  }

  void publish() {
    const std::uint64_t number = next_++;
    const bool again = chance(0.1);  // a new learner has no base, nor one who goes back
    const bool anchor = again || number - last_anchor_ >= anchor_every_;
    const std::int64_t base = again ? kNone : static_cast<std::int64_t>(base_);
    const bool manifest = !chance(0.1);
    shelf_.publish(number, base, anchor, manifest);
    if (!manifest || chance(0.1)) return;  // never named by head
    if (anchor) last_anchor_ = number;
    base_ = shelf_.head = number;
  }

  void a_reader_comes_or_goes() {
    if (readers_.size() < 6 && chance(0.6)) {
      readers_.push_back({.holds = shelf_.head, .fetches = {}, .renewed = shelf_.now, .has_lease = chance(0.7)});
    } else if (!readers_.empty()) {
      readers_.erase(readers_.begin() + static_cast<std::ptrdiff_t>(random_.below(readers_.size())));
    }
  }

  // Reads head, or fetches what head was when it last looked.
  void a_reader_acts() {
    if (readers_.empty()) return;
    Reader& reader = readers_[random_.below(readers_.size())];
    const bool lived = shelf_.now - reader.renewed < rules_.leases;
    if (reader.fetches) {
      const bool whole = shelf_.is_whole(Version(*reader.fetches));
      if (reader.has_lease && lived) {
        EXPECT_TRUE(whole) << "version " << *reader.fetches << " went under a lease";
      }
      // Surprised: head leads on.
      reader.holds = whole ? *reader.fetches : shelf_.head;
      EXPECT_TRUE(shelf_.is_whole(Version(reader.holds)));
      reader.fetches.reset();
    } else {
      reader.fetches = shelf_.head;
    }
    reader.renewed = shelf_.now;
  }

  void upload() {
    const std::uint64_t back = std::min(shelf_.head, random_.below(12));
    std::uint64_t version = shelf_.head - back;
    if (chance(0.05)) version = shelf_.head + 5;
    shelf_.upload(version, fmt::format("g{}", groups_++));
  }

  std::vector<Lease> leases() const {
    std::vector<Lease> leases;
    for (const Reader& reader : readers_) {
      if (!reader.has_lease) continue;
      Lease lease{.versions = {Version(reader.holds)}, .written = reader.renewed};
      if (reader.fetches) lease.versions.emplace_back(*reader.fetches);
      leases.push_back(lease);
    }
    return leases;
  }

  void clean_by_a_bad_listing() {
    RetentionView view = shelf_.view();
    if (chance(0.5)) {
      view.objects.clear();
    } else {
      std::erase_if(view.objects, [&](const ObjectInfo& object) {
        return object.key.starts_with(shelf_.layout.weights(Version(shelf_.head)));
      });
    }
    EXPECT_EQ(shelf_.plan_of(view, rules_).status().code(), StatusCode::kUnavailable);
  }

  void clean(bool dies) {
    shelf_.leases = leases();
    const auto plan = shelf_.plan(rules_);
    ASSERT_TRUE(plan.ok()) << plan.status().to_string();
    std::set<Version> whole_before;
    for (const std::uint64_t version : shelf_.versions()) {
      if (shelf_.is_whole(Version(version))) whole_before.insert(Version(version));
    }
    std::set<Version> promised = {Version(shelf_.head)};
    for (const Lease& lease : shelf_.leases) {
      if (shelf_.now - lease.written < rules_.leases) promised.insert(lease.versions.begin(), lease.versions.end());
    }
    const std::uint64_t trained_on = shelf_.head - std::min(shelf_.head, rules_.staleness);
    std::size_t left = dies ? random_.below(plan->remove.size() + 1) : plan->remove.size();
    for (const ObjectInfo& object : plan->remove) {
      if (left-- == 0) return;
      ASSERT_EQ(shelf_.objects.erase(object.key), 1u) << object.key << " is not there";
      const bool is_group = object.key.starts_with(shelf_.layout.rollouts());
      const std::size_t prefix = (is_group ? shelf_.layout.rollouts() : shelf_.layout.weights_folder()).size();
      const std::uint64_t number = std::stoull(object.key.substr(prefix, 10));
      if (is_group) {
        EXPECT_TRUE(number < trained_on || number > shelf_.head) << object.key << " could be trained on";
        EXPECT_GE(shelf_.now - object.modified, rules_.groups);
      } else {
        EXPECT_LT(number, shelf_.head);
      }
      check(whole_before, promised);
      if (::testing::Test::HasFailure()) return;
    }
  }

  // After each single removal.
  void check(const std::set<Version>& whole_before, const std::set<Version>& promised) {
    for (const Version version : whole_before) {
      if (!shelf_.objects.contains(shelf_.layout.manifest(version))) continue;
      EXPECT_TRUE(shelf_.is_whole(version)) << "version " << version.value() << " has a manifest and is not whole";
    }
    for (const Version version : promised) {
      EXPECT_TRUE(!whole_before.contains(version) || shelf_.is_whole(version)) << version.value();
    }
    EXPECT_TRUE(shelf_.is_whole(Version(shelf_.head)));
    // Groups can be verified as long as they are there.
    for (auto it = shelf_.objects.lower_bound(shelf_.layout.rollouts());
         it != shelf_.objects.end() && it->first.starts_with(shelf_.layout.rollouts()); ++it) {
      const Version version(std::stoull(it->first.substr(shelf_.layout.rollouts().size(), 10)));
      EXPECT_TRUE(!whole_before.contains(version) || shelf_.is_whole(version)) << it->first;
    }
  }

  PhiloxStream random_;
  Shelf shelf_;
  RetentionRules rules_;
  std::uint64_t anchor_every_ = 1, last_anchor_ = 0, base_ = 0, next_ = 1, groups_ = 0;
  std::vector<Reader> readers_;
};

TEST(Retention, InThousandsOfHistoriesNothingThatIsNeededGoesAndNothingElseStays) {
  constexpr std::uint64_t kHistories = 4000;
  for (std::uint64_t seed = 0; seed < kHistories && !HasFailure(); ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    History(seed).run();
  }
}

}  // namespace
}  // namespace flotilla
