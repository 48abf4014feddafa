#include "benchmark/swap_benchmark.h"

#include <malloc.h>

#include <chrono>
#include <optional>
#include <utility>

#include "base/clock.h"
#include "store/object_store.h"
#include "sync/publisher.h"
#include "sync/subscriber.h"

namespace flotilla {

GridState next_version(GridState state) {
  constexpr std::size_t kOneIn = 256;
  for (GridTensor& tensor : state.tensors) {
    for (std::size_t i = 0; i < tensor.q.size(); i += kOneIn) {
      std::int8_t& q = tensor.q[i];
      q = static_cast<std::int8_t>(q > 0 ? q - 1 : q + 1);
    }
  }
  return state;
}

Result<std::vector<SwapTime>> measure_swaps(Engine& engine, GridState state, int threads, int versions) {
  const auto seconds = [](std::chrono::nanoseconds time) { return std::chrono::duration<double>(time).count(); };
  const auto store = make_memory_store();
  const HubLayout layout{"bench/swap"};
  FLOTILLA_ASSIGN_OR_RETURN(const auto key, SigningKey::generate());
  FLOTILLA_ASSIGN_OR_RETURN(const auto publisher,
                            Publisher::open(*store, layout, engine.description(), key,
                                            {.anchor_every = std::int64_t{versions} + 1}, null_event_sink()));
  const auto subscriber =
      Subscriber::create(*store, layout, engine.description(), key->public_key(), null_event_sink(),
                         {.threads = threads, .held = [&engine](TensorIndex i) { return engine.tensor(i); }});
  std::vector<SwapTime> times;
  for (int version = 0; version <= versions; ++version) {
    if (version > 0) state = next_version(std::move(state));
    FLOTILLA_RETURN_IF_ERROR(publisher->publish(state, 0).status());
    FLOTILLA_RETURN_IF_ERROR(subscriber->poll().status());
    const auto begin = system_clock().monotonic();
    FLOTILLA_ASSIGN_OR_RETURN(std::optional<NextVersion> next, subscriber->pull());
    const auto pulled = system_clock().monotonic();
    FLOTILLA_RETURN_IF_ERROR(engine.load(next->weights, OpenSequences::kKeep));
    const auto loaded = system_clock().monotonic();
    subscriber->hold();
    next.reset();
    malloc_trim(0);  // as a worker does, whose next version pays for it
    if (version > 0) times.push_back({seconds(pulled - begin), seconds(loaded - pulled)});
  }
  return times;
}

}  // namespace flotilla
