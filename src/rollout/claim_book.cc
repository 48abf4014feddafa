#include "rollout/claim_book.h"

#include <algorithm>
#include <bit>
#include <charconv>
#include <limits>
#include <utility>

#include <fmt/format.h>

#include "model/strict_json.h"

namespace flotilla {
namespace {

using nlohmann::json;
using Kind = ClaimCall::Kind;

constexpr int kBookFormat = 1;
constexpr std::size_t kWatchesMax = 4;
constexpr std::size_t kLowestKeys = 100;
constexpr std::uint64_t kEpochsMax = 10'000'000'000;  // ten digits
// Blocks before the present epoch, at least an epoch of them, in which a worker looks for leases that have run out.
constexpr std::uint64_t kLookBackBlocks = 1024;

std::uint64_t bits(std::uint64_t count) { return count >= 64 ? ~std::uint64_t{0} : (std::uint64_t{1} << count) - 1; }

std::string mask_text(std::uint64_t mask) { return fmt::format("{:016x}", mask); }

std::optional<std::uint64_t> read_mask(const json& value) {
  if (!value.is_string()) return std::nullopt;
  const auto& text = value.get_ref<const std::string&>();
  std::uint64_t mask = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), mask, 16);
  if (error != std::errc() || mask_text(mask) != text) return std::nullopt;
  return mask;
}

json id_json(const ClaimId& id) { return {{"epoch", id.epoch}, {"block", id.block}, {"lease", id.lease}}; }

std::optional<std::uint64_t> number(const json& object, const char* name) {
  const auto found = object.find(name);
  if (found == object.end() || !found->is_number_unsigned()) return std::nullopt;
  return found->get<std::uint64_t>();
}

std::optional<ClaimId> read_id(const json& object) {
  if (!object.is_object()) return std::nullopt;
  const auto epoch = number(object, "epoch"), block = number(object, "block"), lease = number(object, "lease");
  if (!epoch || !block || !lease) return std::nullopt;
  return ClaimId{*epoch, *block, *lease};
}

}  // namespace

std::optional<HeldClaim> find_held_claim(std::string_view status, const ClaimId& id) {
  const auto object = parse_strict_json(status);
  if (!object.ok() || !object->is_object() || !object->contains("claims") || !(*object)["claims"].is_array()) {
    return std::nullopt;
  }
  std::size_t count = 0;
  for (const json& claim : (*object)["claims"]) {
    if (++count > kHeldBlocksMax) break;
    if (read_id(claim) != id || !claim.contains("done")) continue;
    const auto done = read_mask(claim["done"]);
    if (!done) continue;
    return HeldClaim{object->value("time_ms", json()).dump(), *done};
  }
  return std::nullopt;
}

std::string ClaimBook::save() const {
  json blocks = json::array();
  for (const Block& block : blocks_) {
    json one = id_json(block.id);
    one["all"] = mask_text(block.all);
    one["done"] = mask_text(block.done);
    one["lost"] = block.lost;
    json& made = one["made"] = json::array();
    for (const auto& [index, version] : block.made) made.push_back({index, version.value()});
    blocks.push_back(std::move(one));
  }
  json state = {{"format", kBookFormat},
                {"run", options_.layout.prefix},
                {"worker", options_.worker.value()},
                {"blocks", std::move(blocks)}};
  if (open_) state["open"] = *open_;
  return state.dump() + "\n";
}

Status ClaimBook::restore(std::string_view text) {
  FLOTILLA_ASSIGN_OR_RETURN(const json state, parse_strict_json(text));
  const json expected = {{"format", kBookFormat}, {"run", options_.layout.prefix}, {"worker", options_.worker.value()}};
  for (const auto& [name, value] : expected.items()) {
    if (!state.is_object() || !state.contains(name) || state[name] != value) {
      return data_loss(fmt::format("{} is not {}", name, value.dump()));
    }
  }
  open_ = number(state, "open");
  if (!state.contains("blocks") || !state["blocks"].is_array()) return data_loss("blocks are no list");
  for (const json& one : state["blocks"]) {
    const auto id = read_id(one);
    const TaskOrder& order = options_.order;
    if (!id || id->block >= order.blocks()) return data_loss("a block has no place");
    const auto all = read_mask(one.value("all", json())), done = read_mask(one.value("done", json()));
    const std::uint64_t tasks = bits(order.size(id->block));
    if (!all || !done || (*all & ~tasks) != 0 || (*done & ~*all) != 0) return data_loss("a block has impossible tasks");
    Block block{.id = *id, .all = *all, .done = *done, .lost = one.value("lost", json()) == true, .restored = true};
    for (const json& made : one.value("made", json::array())) {
      if (!made.is_array() || made.size() != 2 || !made[0].is_number_unsigned() || !made[1].is_number_unsigned() ||
          made[0] >= 64 || (*all >> made[0].get<std::uint64_t>() & 1) == 0) {
        return data_loss("a block has an impossible group");
      }
      block.made[made[0].get<std::uint64_t>()] = Version(made[1].get<std::uint64_t>());
      block.out |= std::uint64_t{1} << made[0].get<std::uint64_t>();
    }
    block.out &= ~block.done;
    if (block.lost) block.all = block.done | block.out;  // what was in flight has died
    blocks_.push_back(std::move(block));
  }
  return ok_status();
}

std::int64_t ClaimBook::available(Time now) const {
  std::int64_t count = 0;
  for (const Block& block : blocks_) {
    if (usable(block, now)) count += std::popcount(block.open());
  }
  return count;
}

std::vector<std::uint64_t> ClaimBook::take(std::int64_t count, Time now) {
  std::vector<std::uint64_t> counters;
  for (Block& block : blocks_) {
    while (usable(block, now) && block.open() != 0 && std::ssize(counters) < count) {
      const auto index = static_cast<std::uint64_t>(std::countr_zero(block.open()));
      block.out |= std::uint64_t{1} << index;
      counters.push_back(options_.order.counter(block.id.epoch, block.id.block, index));
    }
  }
  return counters;
}

ClaimBook::Block& ClaimBook::block_of(std::uint64_t counter) {
  const TaskOrder& order = options_.order;
  const std::uint64_t bit = std::uint64_t{1} << order.index_of(counter);
  // Another lease of the same block may be held too, if this worker has taken over what it had forgotten.
  const auto found = std::ranges::find_if(blocks_, [&](const Block& block) {
    return block.id.epoch == order.epoch_of(counter) && block.id.block == order.block_of(counter) &&
           (block.out & bit) != 0;
  });
  FLOTILLA_CHECK(found != blocks_.end());
  return *found;
}

void ClaimBook::made(std::uint64_t counter, Version version) {
  block_of(counter).made[options_.order.index_of(counter)] = version;
  ++revision_;
}

void ClaimBook::uploaded(std::uint64_t counter) {
  Block& block = block_of(counter);
  const std::uint64_t index = options_.order.index_of(counter);
  block.done |= std::uint64_t{1} << index;
  block.out &= ~(std::uint64_t{1} << index);
  block.made.erase(index);
  ++revision_;
}

json ClaimBook::held() const {
  json claims = json::array();
  for (const Block& block : blocks_) {
    json claim = id_json(block.id);
    claim["done"] = mask_text(block.done);
    claims.push_back(std::move(claim));
  }
  return claims;
}

std::optional<ClaimCall> ClaimBook::next_call(std::int64_t wanted, Time now) {
  if (!call_) call_ = plan(wanted, now);
  return call_;
}

std::optional<ClaimCall> ClaimBook::plan(std::int64_t wanted, Time now) {
  std::erase_if(blocks_, [](const Block& block) { return block.lost && block.all == block.done; });
  for (subject_ = 0; subject_ < blocks_.size(); ++subject_) {
    Block& block = blocks_[subject_];
    if (block.restored && !block.made.empty()) {
      purpose_ = Purpose::kMade;
      const auto& [index, version] = *block.made.begin();
      return ClaimCall{
          .kind = Kind::kExists,
          .key = options_.group_key(options_.order.counter(block.id.epoch, block.id.block, index), version)};
    }
    block.restored = false;
    if (block.all == block.done) {
      purpose_ = Purpose::kMark;
      return ClaimCall{.kind = Kind::kCreate, .key = done_key(options_.layout, block.id, options_.worker)};
    }
    if (block.open() != 0 && (!block.checked || now - *block.checked >= options_.lease / 2)) {
      purpose_ = Purpose::kOwn;
      return ClaimCall{.kind = Kind::kGet, .key = claim_key(options_.layout, lease_after(block))};
    }
  }
  purpose_ = Purpose::kSearch;
  if (available(now) >= wanted || blocks_.size() >= kHeldBlocksMax) return std::nullopt;
  if (!step_) {
    looked_back_ = false;
    above_.reset();
    stride_ = 1;
    step_ = Step::kLowest;
    if (open_) scan(*open_);
  }
  return search_call();
}

void ClaimBook::answer(const ClaimAnswer& answer, Time now) {
  FLOTILLA_CHECK(call_);
  call_.reset();
  if (purpose_ == Purpose::kSearch) return search(answer, now);
  Block& block = blocks_[subject_];
  ++revision_;
  if (purpose_ == Purpose::kMark) {
    blocks_.erase(blocks_.begin() + static_cast<std::ptrdiff_t>(subject_));
  } else if (purpose_ == Purpose::kMade) {
    const std::uint64_t bit = std::uint64_t{1} << block.made.begin()->first;
    block.out &= ~bit;
    if (answer.code == StatusCode::kOk) {
      block.done |= bit;
    } else if (block.lost) {
      block.all &= ~bit;
    }
    block.made.erase(block.made.begin());
  } else if (answer.code != StatusCode::kOk) {
    block.checked = now;
  } else if (options_.read(lease_after(block), answer.bytes)) {
    block.lost = true;
    block.all = block.done | block.out;
  } else if (lease_after(block).lease + 1 < kLeasesMax) {
    ++block.junk;
  } else {
    block.checked = now;
  }
}

// The first epoch with a free block: every earlier one has none. Where little is known, epochs are probed in strides
// that double, and what lies between is halved.
void ClaimBook::scan(std::uint64_t epoch) {
  probe_ = epoch;
  step_ = Step::kScan;
  scan_.emplace(options_.layout, epoch, options_.order.blocks(), options_.order.first_block(epoch, options_.worker));
}

void ClaimBook::scanned() {
  const auto free = scan_->free_block();
  if (!free) {
    open_ = probe_ + 1;
    ++revision_;
    if (above_ && *above_ >= *open_) return scan(*open_ + (*above_ - *open_) / 2);
    above_.reset();
    return scan(*open_ + std::exchange(stride_, stride_ * 2) - 1);
  }
  if (probe_ != *open_) {
    above_ = probe_;
    return scan(*open_ + (probe_ - *open_) / 2);
  }
  candidate_ = {probe_, *free, 0};
  step_ = looked_back_ ? Step::kClaim : Step::kLookBack;
  if (looked_back_) return;
  const std::uint64_t epochs = 1 + (kLookBackBlocks - 1) / options_.order.blocks();
  const std::string floor = options_.layout.claims(probe_ - std::min(probe_, epochs));
  if (look_back_after_ < floor) look_back_after_ = floor;
}

ClaimId ClaimBook::lease_after(const Block& block) {
  return {block.id.epoch, block.id.block, block.id.lease + 1 + block.junk};
}

ClaimId ClaimBook::held_lease() const {
  const Watch& watch = watches_[watch_];
  return {watch.id.epoch, watch.id.block, watch.lease};
}

ClaimId ClaimBook::next_lease() const {
  const ClaimId& id = watches_[watch_].id;
  return {id.epoch, id.block, id.lease + 1};
}

ClaimCall ClaimBook::search_call() const {
  const HubLayout& layout = options_.layout;
  switch (*step_) {
    case Step::kLowest:  // strangers' names that sort before the first epoch fill no page
      return {.kind = Kind::kList, .key = layout.claims(), .after = layout.claims(0), .limit = kLowestKeys};
    case Step::kScan:
      return {.kind = Kind::kList, .key = scan_->prefix(), .after = scan_->after(), .limit = scan_->limit()};
    case Step::kLookBack: return {.kind = Kind::kList, .key = layout.claims(), .after = look_back_after_};
    case Step::kHolder: return {.kind = Kind::kGet, .key = claim_key(layout, held_lease())};
    case Step::kStatus: return {.kind = Kind::kGet, .key = layout.worker_status(*watches_[watch_].holder)};
    case Step::kIsDone: return {.kind = Kind::kExists, .key = done_key(layout, held_lease(), *watches_[watch_].holder)};
    case Step::kTakeOver:
    case Step::kClaim: {
      const ClaimId id = *step_ == Step::kClaim ? candidate_ : next_lease();
      return {.kind = Kind::kCreate, .key = claim_key(layout, id), .bytes = options_.write(id)};
    }
    case Step::kTakeOverRead: return {.kind = Kind::kGet, .key = claim_key(layout, next_lease())};
    case Step::kClaimRead: return {.kind = Kind::kGet, .key = claim_key(layout, candidate_)};
  }
  return {};
}

void ClaimBook::search(const ClaimAnswer& answer, Time now) {
  const bool ok = answer.code == StatusCode::kOk;
  switch (*step_) {
    case Step::kLowest: {
      open_ = 0;
      for (const ObjectInfo& object : answer.page.objects) {
        const auto name = read_claim_key(options_.layout, object.key);
        if (!name || name->id.epoch >= kEpochsMax) continue;
        open_ = name->id.epoch;
        break;
      }
      ++revision_;
      return scan(*open_);
    }
    case Step::kScan:
      if (scan_->take(answer.page)) scanned();
      return;
    case Step::kLookBack:
      looked_back_ = true;
      look_back(answer.page);
      return watch_from(0, now);
    case Step::kHolder: {
      Watch& watch = watches_[watch_];
      if (!ok) return drop_watch(now);  // removed with its epoch
      watch.holder = options_.read(held_lease(), answer.bytes);
      // What is no claim takes a block from nobody.
      if (!watch.holder && watch.lease > 0) {
        --watch.lease;
      } else {
        watch.read = true;
      }
      return watch_from(watch_, now);
    }
    case Step::kStatus: return judge(ok ? find_held_claim(answer.bytes, held_lease()) : std::nullopt, now);
    case Step::kIsDone:
      if (ok) return drop_watch(now);
      step_ = Step::kTakeOver;
      return;
    case Step::kTakeOver:
      if (ok) return hold(next_lease(), watches_[watch_].done, now);
      step_ = Step::kTakeOverRead;
      return;
    case Step::kTakeOverRead:
      // The answer to one's own claim may have been lost.
      if (ok && answer.bytes == options_.write(next_lease())) return hold(next_lease(), watches_[watch_].done, now);
      return drop_watch(now);
    case Step::kClaim:
      if (ok) return hold(candidate_, 0, now);
      step_ = Step::kClaimRead;
      return;
    case Step::kClaimRead:
      if (ok && answer.bytes == options_.write(candidate_)) return hold(candidate_, 0, now);
      return scan(*open_);
  }
}

// Chooses, of the claims on the page that nobody has marked as done, some to watch.
void ClaimBook::look_back(const ListPage& page) {
  struct Seen {
    ClaimId id;
    bool done = false;
  };
  std::vector<Seen> seen;
  for (const ObjectInfo& object : page.objects) {
    const auto name = read_claim_key(options_.layout, object.key);
    if (!name || name->id.block >= options_.order.blocks() || name->id.epoch > candidate_.epoch) continue;
    Seen* last = seen.empty() ? nullptr : &seen.back();
    if (last != nullptr && last->id.epoch == name->id.epoch && last->id.block == name->id.block) {
      if (name->done_by) last->done = true;
      if (!name->done_by && name->id.lease == last->id.lease + 1) ++last->id.lease;
    } else if (!name->done_by && name->id.lease == 0) {
      seen.push_back({name->id});
    }
  }
  look_back_after_ = page.next;
  if (!page.next.empty() && seen.size() > 1) {
    // The page may end within a block.
    const ClaimId& last = seen.back().id;
    look_back_after_ = options_.layout.claims(last.epoch) + padded(last.block);
    seen.pop_back();
  }
  std::erase_if(seen, [&](const Seen& one) {
    const auto same = [&](const auto& other) {
      return other.id.epoch == one.id.epoch && other.id.block == one.id.block;
    };
    return one.done || one.id.lease + 1 >= kLeasesMax || std::ranges::any_of(blocks_, same) ||
           std::ranges::any_of(watches_, same);
  });
  while (!seen.empty() && watches_.size() < kWatchesMax) {
    const auto chosen = seen.begin() + static_cast<std::ptrdiff_t>(random_.below(seen.size()));
    watches_.push_back({.id = chosen->id, .lease = chosen->id.lease});
    seen.erase(chosen);
  }
}

void ClaimBook::watch_from(std::size_t index, Time now) {
  watch_ = index;
  if (watch_ == watches_.size()) {
    step_ = Step::kClaim;
  } else if (!watches_[watch_].read) {
    step_ = Step::kHolder;
  } else if (watches_[watch_].holder) {
    step_ = Step::kStatus;
  } else {
    judge(std::nullopt, now);
  }
}

void ClaimBook::judge(const std::optional<HeldClaim>& held, Time now) {
  Watch& watch = watches_[watch_];
  const std::string sign = held ? held->sign_of_life : std::string();
  if (watch.since && sign != watch.sign_of_life) return drop_watch(now);
  if (!watch.since) {
    watch.since = now;
    watch.sign_of_life = sign;
    watch.done = held ? held->done : 0;
  }
  if (now - *watch.since < options_.lease) return watch_from(watch_ + 1, now);
  step_ = watch.holder ? Step::kIsDone : Step::kTakeOver;
}

void ClaimBook::drop_watch(Time now) {
  watches_.erase(watches_.begin() + static_cast<std::ptrdiff_t>(watch_));
  watch_from(watch_, now);
}

void ClaimBook::hold(const ClaimId& id, std::uint64_t done, Time now) {
  const std::uint64_t all = bits(options_.order.size(id.block));
  blocks_.push_back({.id = id, .all = all, .done = done & all, .checked = now});
  std::erase_if(watches_, [&](const Watch& watch) { return watch.id.epoch == id.epoch && watch.id.block == id.block; });
  step_.reset();
  scan_.reset();
  news_ = id;
  ++revision_;
}

}  // namespace flotilla
