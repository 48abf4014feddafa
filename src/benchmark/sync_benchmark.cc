#include "benchmark/sync_benchmark.h"

#include <malloc.h>
#include <sys/resource.h>
#include <time.h>
#include <zstd.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <fstream>
#include <functional>
#include <iterator>
#include <utility>

#include "base/philox.h"
#include "base/thread_pool.h"

namespace flotilla {
namespace {

template <typename Integer>
void change_some(std::span<Integer> integers, int limit, double chance, PhiloxStream& random) {
  const auto below = static_cast<std::uint64_t>(std::ldexp(chance, 32));
  for (Integer& q : integers) {
    if (random.next_u32() >= below) continue;
    const bool up = q == -limit || (q != limit && random.next_u32() % 2 == 0);
    q = static_cast<Integer>(q + (up ? 1 : -1));
  }
}

struct GapStreams {
  ByteWriter counts, gaps, steps, scale_gaps, scales;
};

template <typename T>
void put_differences(std::span<const T> before, std::span<const T> after, ByteWriter& counts, ByteWriter& gaps,
                     const std::function<void(T before, T after)>& put) {
  std::uint64_t count = 0;
  for (std::size_t i = 0, next = 0; i < before.size(); ++i) {
    if (before[i] == after[i]) continue;
    gaps.put_varint(i - next);
    put(before[i], after[i]);
    next = i + 1;
    ++count;
  }
  counts.put_varint(count);
}

template <typename Integer>
void put_integers(std::span<const Integer> before, std::span<const Integer> after, GapStreams& out) {
  put_differences<Integer>(before, after, out.counts, out.gaps, [&](int from, int to) {
    out.steps.put_varint(static_cast<std::uint64_t>(to > from ? 2 * (to - from) - 1 : 2 * (from - to) - 2));
  });
}

template <typename T>
void put_exclusive_or(std::span<const T> before, std::span<const T> after, Bytes& out) {
  std::ranges::transform(as_bytes(before), as_bytes(after), std::back_inserter(out), std::bit_xor<std::uint8_t>());
}

double now_of(clockid_t clock) {
  timespec now{};
  clock_gettime(clock, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

double seconds_of(const std::function<void()>& work, int threads = 1) {
  const clockid_t clock = threads == 1 ? CLOCK_PROCESS_CPUTIME_ID : CLOCK_MONOTONIC;
  const double begin = now_of(clock);
  work();
  return now_of(clock) - begin;
}

// As a worker does it, to a state that it has as a whole.
Status apply_to(const ModelDescription& description, GridState& state, DeltaHistory& history, const Bytes& bytes,
                int threads) {
  FLOTILLA_ASSIGN_OR_RETURN(const DeltaFrame frame, read_delta_frame(description, bytes));
  const DeltaLayout layout = delta_layout(description);
  DeltaApplication application(description, layout, frame);
  ThreadPool pool(threads);
  for (const DeltaLayout::Batch& batch : layout.batches) {
    const auto tensors = std::span(state.tensors).subspan(batch.tensor_begin, batch.tensor_end - batch.tensor_begin);
    DeltaScratch scratch;  // as make_tensors() has it
    FLOTILLA_RETURN_IF_ERROR(application.apply(batch, tensors, history, pool, scratch));
  }
  return application.finish();
}

std::int64_t most_resident_bytes() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return std::int64_t{usage.ru_maxrss} << 10;
}

Result<std::int64_t> peak_of(const std::function<void()>& work) {
  malloc_trim(0);
  // The most is what is resident now: proc(5).
  if (!(std::ofstream("/proc/self/clear_refs") << "5" << std::flush)) {
    return unavailable("/proc/self/clear_refs cannot be written, so the peak of memory is not known");
  }
  const std::int64_t before = most_resident_bytes();
  work();
  return most_resident_bytes() - before;
}

}  // namespace

GridState random_changes(GridState state, double chance, std::uint64_t seed) {
  PhiloxStream random(seed, 0);
  for (GridTensor& tensor : state.tensors) {
    change_some<std::int8_t>(tensor.q, kMatrixLimit, chance, random);
    change_some<std::int16_t>(tensor.vector_q, kVectorLimit, chance, random);
  }
  return state;
}

double memoryless_bytes(std::int64_t changed, std::int64_t total) {
  const double n = static_cast<double>(total), p = static_cast<double>(changed) / n;
  if (changed == 0 || changed == total) return static_cast<double>(changed) / 8;
  return (n * -(p * std::log2(p) + (1 - p) * std::log2(1 - p)) + n * p) / 8;
}

Bytes plain_gaps(const GridState& before, const GridState& after) {
  GapStreams streams;
  for (std::size_t i = 0; i < before.tensors.size(); ++i) {
    const GridTensor &from = before.tensors[i], &to = after.tensors[i];
    put_integers<std::int8_t>(from.q, to.q, streams);
    put_integers<std::int16_t>(from.vector_q, to.vector_q, streams);
    const auto put_scale = [&](auto, auto scale) { streams.scales.put(scale); };
    put_differences<std::uint16_t>(from.scales, to.scales, streams.counts, streams.scale_gaps, put_scale);
    put_differences<float>({&from.vector_scale, 1}, {&to.vector_scale, 1}, streams.counts, streams.scale_gaps,
                           put_scale);
  }
  ByteWriter out;
  for (ByteWriter* stream : {&streams.counts, &streams.gaps, &streams.steps, &streams.scale_gaps, &streams.scales}) {
    out.put_varint(stream->size());
    out.put_bytes(std::move(*stream).take());
  }
  return std::move(out).take();
}

Bytes exclusive_or(const GridState& before, const GridState& after) {
  Bytes out;
  for (std::size_t i = 0; i < before.tensors.size(); ++i) {
    const GridTensor &from = before.tensors[i], &to = after.tensors[i];
    put_exclusive_or<std::int8_t>(from.q, to.q, out);
    put_exclusive_or<std::uint16_t>(from.scales, to.scales, out);
    put_exclusive_or<std::int16_t>(from.vector_q, to.vector_q, out);
    put_exclusive_or<float>({&from.vector_scale, 1}, {&to.vector_scale, 1}, out);
  }
  return out;
}

Result<DeltaCost> measure_delta(const ModelDescription& description, const GridState& before,
                                const DeltaHistory& history, const GridState& after, std::span<const int> threads,
                                int repeat) {
  Result<EncodedDelta> encoded = internal_error("not encoded");
  GridState state;
  DeltaHistory state_history;
  Status applied;
  const auto encode = [&](int with) { encoded = encode_delta(description, before, history, after, with); };
  const auto apply = [&](int with) { applied = apply_to(description, state, state_history, encoded->bytes, with); };

  DeltaCost cost;
  const int most = std::ranges::max(threads);
  FLOTILLA_ASSIGN_OR_RETURN(cost.encode_peak_bytes, peak_of([&] { encode(most); }));
  FLOTILLA_RETURN_IF_ERROR(encoded.status());
  state = before;
  state_history = history;
  FLOTILLA_ASSIGN_OR_RETURN(cost.apply_peak_bytes, peak_of([&] { apply(most); }));
  FLOTILLA_RETURN_IF_ERROR(applied);
  if (state != after || state_history != encoded->history) return data_loss("the delta leads somewhere else");

  for (const int with : threads) {
    DeltaSpeed& speed =
        cost.speeds.emplace_back(DeltaSpeed{.threads = with, .encode_seconds = {}, .apply_seconds = {}});
    for (int i = 0; i < repeat; ++i) {
      speed.encode_seconds.push_back(seconds_of([&] { encode(with); }, with));
      state = before;
      state_history = history;
      speed.apply_seconds.push_back(seconds_of([&] { apply(with); }, with));
    }
  }
  cost.delta = *std::move(encoded);
  return cost;
}

CompressorCost measure_zstd(ByteSpan bytes, int level) {
  Bytes compressed(ZSTD_compressBound(bytes.size()));
  std::size_t size = 0;
  const double seconds = seconds_of(
      [&] { size = ZSTD_compress(compressed.data(), compressed.size(), bytes.data(), bytes.size(), level); });
  FLOTILLA_CHECK(ZSTD_isError(size) == 0);
  return {static_cast<std::int64_t>(size), seconds};
}

}  // namespace flotilla
