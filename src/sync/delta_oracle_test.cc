// Deltas against a reader that follows docs/formats/delta.md in another language: tests/oracles/delta_oracle.py.
#include <gtest/gtest.h>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/files.h"
#include "model/oracle_for_tests.h"
#include "sync/anchor.h"
#include "sync/delta.h"
#include "sync/tensors_for_tests.h"
#include "sync/test_model.h"

namespace flotilla {
namespace {

namespace fs = std::filesystem;

class DeltaOracle : public ::testing::Test {
 protected:
  fs::path write(const std::string& name, ByteSpan bytes) const {
    const fs::path path = folder_.path() / name;
    EXPECT_TRUE(write_file_atomically(path, as_text(bytes)).ok());
    return path;
  }
  fs::path write_tensors(const ModelDescription& description) const {
    nlohmann::json tensors = nlohmann::json::array();
    for (const TensorSpec& spec : description.tensors) {
      const char* kind = spec.kind == TensorKind::kMatrix ? "matrix" : "vector";
      tensors.push_back({spec.name, kind, spec.rows, spec.cols});
    }
    return write("tensors.json", as_bytes(tensors.dump()));
  }

  // A chain of versions, each made with its changes; the other reader has to follow.
  void expect_followed(const ModelDescription& description, const std::vector<ChangeRates>& chain) {
    const fs::path tensors = write_tensors(description);
    GridState state = random_state(description, random_);
    DeltaHistory history = no_history(description);
    const auto anchor = [&](std::size_t version) {
      const AnchorLabel label{"owner/run", Version(version), state_digest(description, state)};
      return write(fmt::format("anchor-{}", version), encode_anchor(description, state, history, label).value());
    };
    fs::path before = anchor(0);
    for (std::size_t version = 1; version <= chain.size(); ++version) {
      SCOPED_TRACE(version);
      const GridState next = changed_state(description, state, chain[version - 1], random_);
      EncodedDelta delta = encode_delta(description, state, history, next).value();
      state = next;
      history = std::move(delta.history);
      const fs::path after = anchor(version);
      ASSERT_TRUE(run_python("tests/oracles/delta_oracle.py", tensors, before, write("delta", delta.bytes), after));
      before = after;
    }
  }

  const TemporaryFolder folder_;
  PhiloxStream random_{21, 0};
};

TEST_F(DeltaOracle, AnotherReaderFollowsChangesOfEveryKind) {
  FLOTILLA_NEED_ORACLE();
  expect_followed(test_description(), {{.integers = 0.01, .vectors = 0.01},
                                       {.integers = 0.005, .vectors = 0.01, .scales = 0.05},
                                       {},
                                       {.integers = 0.01, .vectors = 0.2, .scales = 0.3},
                                       {.integers = 0.4, .vectors = 0.4},
                                       {.integers = 0.002, .vectors = 0.01},
                                       {.integers = 1, .vectors = 1}});
}

TEST_F(DeltaOracle, AnotherReaderFollowsWhereTensorsHaveManyParts) {
  FLOTILLA_NEED_ORACLE();
  const ModelDescription description = description_of({{"a", TensorKind::kMatrix, 700, 100},
                                                       {"norm", TensorKind::kVector, 1, 5000},
                                                       {"wide", TensorKind::kMatrix, 2100, 2048},
                                                       {"b", TensorKind::kMatrix, 4000, 1000},
                                                       {"last", TensorKind::kVector, 1, 70}});
  expect_followed(description, {{.integers = 0.002, .vectors = 0.01}, {.integers = 0.0003, .vectors = 0.01}});
}

TEST_F(DeltaOracle, AnotherReaderFollowsTheGoldenFiles) {
  FLOTILLA_NEED_ORACLE();
  const fs::path golden = "tests/golden/sync-2";
  EXPECT_TRUE(run_python("tests/oracles/delta_oracle.py", write_tensors(test_description()), golden / "base_anchor",
                         golden / "delta", golden / "anchor", golden / "manifest.json"));
}

}  // namespace
}  // namespace flotilla
