#include "store/object_store_suite_for_tests.h"

#include "store/fault_store.h"

namespace flotilla {
namespace {

Hub memory_hub() { return {nullptr, nullptr, make_memory_store()}; }
Hub directory_hub() {
  auto folder = std::make_unique<TemporaryFolder>();
  auto store = open_directory_store((folder->path() / "hub").string(), true);
  return {std::move(folder), nullptr, std::move(store).value()};
}
Hub fault_hub() {
  auto inner = make_memory_store();
  auto store = std::make_unique<FaultStore>(*inner, FaultRates{}, 1);
  return {nullptr, std::move(inner), std::move(store)};
}

INSTANTIATE_TEST_SUITE_P(Implementations, ObjectStoreTest,
                         ::testing::Values(Implementation{"memory", memory_hub},
                                           Implementation{"directory", directory_hub},
                                           Implementation{"fault", fault_hub}),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace flotilla
