#include "sync/change_coder.h"

#include <algorithm>
#include <bit>
#include <tuple>
#include <utility>

#include "model/grid.h"
#include "sync/halving.h"

namespace flotilla {
namespace {

constexpr int kWeightBits = 8;  // a group of ordinary scale has the weight 2^8
constexpr int kRateBits = 16;   // parts of a rate
constexpr int kRateMantissa = 8;
constexpr std::uint32_t kAll = 1u << kRangeBits;

// Time of the process of changes that one integer of a group takes, in 2^-kRateBits: its chance is 1 - 2^-time.
std::uint64_t time_of(std::uint16_t scale, std::uint16_t ordinary, std::uint64_t rate) {
  // The bits of a bf16 are its logarithm, nearly: 128 an octave.
  const int below = std::clamp(int{ordinary} - int{scale}, -4 * 128, 4 * 128) + 4 * 128;
  const std::uint64_t weight = ((128u + static_cast<unsigned>(below) % 128) << (below / 128)) >> (4 + 7 - kWeightBits);
  constexpr std::uint64_t kMost = (kHorizon / 2) << kRateBits;
  return std::clamp<std::uint64_t>(weight * rate, 1u << kRateBits, kMost);
}

std::uint16_t ordinary_scale(std::span<const std::uint16_t> scales) {
  std::uint64_t sum = 0;
  for (const std::uint16_t scale : scales) sum += scale;
  return static_cast<std::uint16_t>(sum / scales.size());
}

// A rate as 5 + kRateMantissa bits; 0: nothing changes.
std::uint64_t rate_of(std::uint32_t code) {
  if (code == 0) return 0;
  const std::uint64_t mantissa = (1u << kRateMantissa) + code % (1u << kRateMantissa);
  return mantissa << (code >> kRateMantissa);
}
std::uint32_t code_of(std::uint64_t rate) {
  constexpr std::uint64_t kLeast = 1 << kRateMantissa;
  const int octave = std::clamp(static_cast<int>(std::bit_width(rate)) - (kRateMantissa + 1), 0, 31);
  const std::uint64_t mantissa = std::clamp(rate >> octave, kLeast, 2 * kLeast - 1) - kLeast;
  return std::max(1u, static_cast<std::uint32_t>(octave) << kRateMantissa | static_cast<std::uint32_t>(mantissa));
}

// Walks the groups of a region in order. Past changes are left out: they have a chance of their own.
class Clock {
 public:
  Clock(const ChangeRegion& region, std::span<const PastChange> past, std::uint64_t rate)
      : region_(region), past_(past), rate_(rate), ordinary_(ordinary_scale(region.scales)), group_begin_(0) {
    open_group();
  }

  // Time at which the integers of the group begin, in all; and end.
  std::uint64_t group_begins() const { return begins_; }
  std::uint64_t group_ends() const { return ends_; }
  // Time between the group's begin and its `index`-th integer that is not past.
  std::uint64_t after(std::uint32_t index) const { return index * each_ >> kRateBits; }
  std::uint32_t free() const { return free_; }
  // The index at which so much of the group's time is over, nearly.
  std::uint32_t index_near(std::uint64_t time) const {
    return std::min(static_cast<std::uint32_t>(time * a_time_ >> 2 * kRateBits), free_ - 1);
  }

  // False, and nothing else, at the last one.
  bool next_group() {
    if (group_end_ == region_.integers) return false;
    begins_ = ends_;
    group_begin_ = group_end_;
    if (column_ == region_.cols) column_ = 0;
    past_ = past_.subspan(past_here_);
    open_group();
    return true;
  }
  bool holds(std::uint32_t position) const { return position < group_end_; }

  std::uint32_t index_of(std::uint32_t position) const {
    std::uint32_t index = position - group_begin_;
    for (std::size_t i = 0; i < past_here_ && past_[i].position < position; ++i) --index;
    return index;
  }
  std::uint32_t position_of(std::uint32_t index) const {
    std::uint32_t position = group_begin_ + index;
    for (std::size_t i = 0; i < past_here_ && past_[i].position <= position; ++i) ++position;
    return position;
  }

 private:
  void open_group() {
    const auto width = static_cast<std::uint32_t>(std::min(kScaleGroup, region_.cols - column_));
    column_ += width;
    group_end_ = group_begin_ + width;
    past_here_ = 0;
    while (past_here_ < past_.size() && past_[past_here_].position < group_end_) ++past_here_;
    free_ = width - static_cast<std::uint32_t>(past_here_);
    each_ = time_of(region_.scales[group_++], ordinary_, rate_);
    a_time_ = (std::uint64_t{1} << 3 * kRateBits) / each_;
    ends_ = begins_ + after(free_);
  }

  const ChangeRegion& region_;
  std::span<const PastChange> past_;  // from this group on
  const std::uint64_t rate_;
  const std::uint16_t ordinary_;
  std::size_t group_ = 0;    // of the next one's scale
  std::int64_t column_ = 0;  // where the group ends
  std::uint32_t group_begin_ = 0, group_end_ = 0;
  std::size_t past_here_ = 0;
  std::uint32_t free_ = 0;
  std::uint64_t each_ = 1;    // time of an integer, in parts
  std::uint64_t a_time_ = 1;  // integers of a unit of time, nearly, in 2^-32
  std::uint64_t begins_ = 0, ends_ = 0;
};

std::uint32_t survival_since(std::uint64_t base, std::uint64_t time) { return survival(time > base ? time - base : 0); }

// The time after which something has happened with this chance in 2^-kRangeBits, at most 3/4.
std::uint64_t time_of_chance(std::uint64_t chance) {
  std::uint64_t low = 1, high = kHorizon / 2;
  while (low < high) {
    const std::uint64_t time = (low + high) / 2;
    survival(time) <= kAll - chance ? high = time : low = time + 1;
  }
  return low;
}

// The rate at which the free integers of a region change as often as they do.
std::uint32_t fitting_rate(const ChangeRegion& region, std::span<const PastChange> past, std::int64_t changes) {
  if (changes == 0) return 0;
  Clock clock(region, past, 1 << kRateBits);
  std::uint64_t weights = 0, integers = 0;
  do {
    weights += clock.group_ends() - clock.group_begins();
    integers += clock.free();
  } while (clock.next_group());
  const std::uint64_t chance =
      std::min<std::uint64_t>(kAll / 4 * 3, static_cast<std::uint64_t>(changes) * kAll / integers);
  // Sizes of one region: 25 + 27 bits, and the parts of a rate.
  const auto time = static_cast<unsigned __int128>(time_of_chance(chance) * integers) << kRateBits;
  return code_of(static_cast<std::uint64_t>(time / weights));
}

void put_length(std::uint32_t length, ChangeModel& model, RangeEncoder& out) {
  const int bits = std::bit_width(length) - 1;
  for (std::size_t i = 0; i < model.longer.size(); ++i) {
    const bool longer = bits > static_cast<int>(i);
    model.longer[i].put(longer, out);
    if (!longer) break;
  }
  if (bits > 0) out.put_raw(length - (1u << bits), bits);
}
// The rest of a length of more than 1, and the decoder behind it: given back, so that its owner's has no address.
std::pair<std::int32_t, RangeDecoder> get_longer(ChangeModel& model, RangeDecoder in) {
  int bits = 1;
  while (bits < std::ssize(model.longer) && model.longer[static_cast<std::size_t>(bits)].get(in)) ++bits;
  const std::uint32_t length = (1u << bits) + in.raw(bits);
  return {static_cast<std::int32_t>(length), in};
}
inline std::int32_t get_step(bool up, ChangeModel& model, RangeDecoder& in) {
  std::int32_t length = 1;
  if (model.longer[0].get_rare(in)) std::tie(length, in) = get_longer(model, in);
  return length * (2 * std::int32_t{up} - 1);
}

std::uint32_t length_of(std::int32_t step) { return static_cast<std::uint32_t>(step > 0 ? step : -step); }

}  // namespace

void encode_changes(const ChangeRegion& region, std::span<const PastChange> past, std::span<const Change> changes,
                    ChangeModel& model, RangeEncoder& out) {
  // First what changed before.
  std::vector<Change> fresh;
  auto change = changes.begin();
  for (const PastChange& before : past) {
    while (change != changes.end() && change->position < before.position) fresh.push_back(*change++);
    const bool again = change != changes.end() && change->position == before.position;
    model.changed_again[before.age].put(again, out);
    if (!again) continue;
    model.same_direction[before.age].put((change->step > 0) == (before.up == 1), out);
    put_length(length_of(change->step), model, out);
    ++change;
  }
  fresh.insert(fresh.end(), change, changes.end());

  const std::uint32_t code = fitting_rate(region, past, std::ssize(fresh));
  out.put_raw(code, 5 + kRateMantissa);
  if (code == 0) return;
  Clock clock(region, past, rate_of(code));
  std::uint64_t base = 0;
  const auto put_from = [&](std::uint64_t begin, std::uint64_t end) {
    const std::uint32_t high = survival_since(base, begin);
    out.put(kAll - high, high - (end == 0 ? 0 : survival_since(base, end)));
  };
  for (const Change& each : fresh) {
    while (!clock.holds(each.position)) clock.next_group();
    const std::uint32_t index = clock.index_of(each.position);
    const std::uint64_t begin = clock.group_begins() + clock.after(index);
    const std::uint64_t end = clock.group_begins() + clock.after(index + 1);
    for (; end > base + kHorizon; base += kHorizon) put_from(base + kHorizon, 0);
    put_from(begin, end);
    base = end;
    model.up.put(each.step > 0, out);
    put_length(length_of(each.step), model, out);
  }
  while (clock.next_group()) {
  }
  for (; clock.group_ends() > base + kHorizon; base += kHorizon) put_from(base + kHorizon, 0);
  put_from(clock.group_ends(), 0);
}

Status decode_changes(const ChangeRegion& region, std::span<const PastChange> past, ChangeModel& model,
                      RangeDecoder& decoder, std::vector<Change>& changes) {
  RangeDecoder in = decoder;  // whose address nobody has stays in registers
  std::vector<Change> again;
  for (const PastChange& before : past) {
    if (!model.changed_again[before.age].get_rare(in)) continue;
    const bool same = model.same_direction[before.age].get(in);
    again.push_back({before.position, get_step(same == (before.up == 1), model, in)});
  }
  auto next_again = again.begin();
  const auto take_again_until = [&](std::uint32_t position) {
    while (next_again != again.end() && next_again->position < position) changes.push_back(*next_again++);
  };

  const std::uint32_t code = in.raw(5 + kRateMantissa);
  if (code != 0) {
    Clock clock(region, past, rate_of(code));
    for (std::uint64_t base = 0;;) {
      const std::uint64_t at = in.at();
      const auto edge_of = [&](std::uint64_t time) { return in.edge(kAll - survival_since(base, time)); };
      const std::uint64_t all = in.edge(kAll), horizon = in.edge(kAll - kSurvivesHorizon);
      bool more = true;
      if (at >= horizon) {
        while (clock.group_ends() <= base + kHorizon && (more = clock.next_group())) {
        }
        if (more) {
          in.take(horizon, all);
          base += kHorizon;
          continue;
        }
      } else {
        const std::uint64_t near = base + time_near(all, all - at);
        // Groups that end well before or after it need no look at their survival.
        while (clock.group_ends() <= near + kTimeError &&
               (clock.group_ends() + kTimeError < near || edge_of(clock.group_ends()) <= at) &&
               (more = clock.next_group())) {
        }
        if (more) {
          const auto begin = [&](std::uint32_t index) { return clock.group_begins() + clock.after(index); };
          std::uint32_t index = clock.index_near(near - std::min(near, clock.group_begins()));
          std::uint64_t low = edge_of(begin(index)), high = edge_of(begin(index + 1));
          while (at < low) high = std::exchange(low, edge_of(begin(--index)));
          while (at >= high) low = std::exchange(high, edge_of(begin(++index + 1)));
          in.take(low, high);
          if (begin(index + 1) > base + kHorizon) return data_loss("a change where none can be written");
          base = begin(index + 1);
          const std::uint32_t position = clock.position_of(index);
          take_again_until(position);
          changes.push_back({position, get_step(model.up.get(in), model, in)});
          continue;
        }
      }
      in.take(edge_of(clock.group_ends()), all);
      break;
    }
  }
  take_again_until(region.integers);
  decoder = in;
  return ok_status();
}

}  // namespace flotilla
