#include "rollout/group_file.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <functional>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/files.h"
#include "model/oracle_for_tests.h"
#include "model/safetensors.h"
#include "rollout/group_for_tests.h"

namespace flotilla {
namespace {

using nlohmann::json;

constexpr std::string_view kGolden = "tests/golden/group.safetensors";

void expect_equal(const Episode& a, const Episode& b) {
  EXPECT_EQ(a.tokens, b.tokens);
  EXPECT_EQ(a.sources, b.sources);
  EXPECT_EQ(a.logprobs, b.logprobs);
  EXPECT_EQ(a.turns, b.turns);
  EXPECT_EQ(a.end, b.end);
  EXPECT_EQ(a.reward, b.reward);
  EXPECT_EQ(a.metrics, b.metrics);
  ASSERT_EQ(a.spans.size(), b.spans.size());
  for (std::size_t i = 0; i < a.spans.size(); ++i) {
    EXPECT_EQ(a.spans[i].begin, b.spans[i].begin);
    EXPECT_EQ(a.spans[i].end, b.spans[i].end);
    EXPECT_EQ(a.spans[i].version, b.spans[i].version);
    EXPECT_EQ(a.spans[i].state, b.spans[i].state);
    EXPECT_EQ(a.spans[i].context, b.spans[i].context);
  }
}

TEST(GroupFile, GivesBackEveryField) {
  const Group group = make_test_group();
  const auto parsed = parse_group(write_group(group));
  ASSERT_TRUE(parsed.ok()) << parsed.status().to_string();
  const GroupIdentity& a = group.identity;
  const GroupIdentity& b = parsed->identity;
  EXPECT_EQ(a.run, b.run);
  EXPECT_EQ(a.seed, b.seed);
  EXPECT_EQ(a.group, b.group);
  EXPECT_EQ(a.operator_id, b.operator_id);
  EXPECT_EQ(a.worker, b.worker);
  EXPECT_EQ(a.counter, b.counter);
  EXPECT_EQ(a.attempt, b.attempt);
  EXPECT_EQ(a.split, b.split);
  EXPECT_EQ(a.task, b.task);
  EXPECT_EQ(a.backend, b.backend);
  EXPECT_EQ(a.arithmetic, b.arithmetic);
  EXPECT_EQ(a.tokenizer, b.tokenizer);
  EXPECT_EQ(a.environment, b.environment);
  EXPECT_EQ(a.corpus, b.corpus);
  EXPECT_EQ(a.sampling.temperature, b.sampling.temperature);
  EXPECT_EQ(a.sampling.top_k, b.sampling.top_k);
  EXPECT_EQ(a.sampling.top_p, b.sampling.top_p);
  EXPECT_EQ(a.task_metadata, b.task_metadata);
  EXPECT_EQ(group.prompt_tokens, parsed->prompt_tokens);
  ASSERT_EQ(parsed->episodes.size(), 2u);
  for (std::size_t i = 0; i < 2; ++i) expect_equal(group.episodes[i], parsed->episodes[i]);
}

TEST(GroupFile, NamesAnApproximateBackend) {
  Group group = make_test_group();
  group.identity.arithmetic = kApproximate;
  const Bytes bytes = write_group(group);
  EXPECT_NE(as_text(bytes).find("approximate"), std::string_view::npos);
  const auto parsed = parse_group(bytes);
  ASSERT_TRUE(parsed.ok()) << parsed.status().to_string();
  EXPECT_EQ(parsed->identity.arithmetic, kApproximate);
}

TEST(GroupFile, StaysReadable) {
  if (std::getenv("FLOTILLA_WRITE_GOLDEN") != nullptr) {
    ASSERT_TRUE(write_file_atomically(kGolden, write_group(make_test_group())).ok());
  }
  const auto bytes = read_file(kGolden);
  ASSERT_TRUE(bytes.ok()) << bytes.status().to_string();
  const auto group = parse_group(*bytes);
  ASSERT_TRUE(group.ok()) << group.status().to_string();
  EXPECT_EQ(group->identity.group, make_test_group().identity.group);
  EXPECT_EQ(*bytes, write_group(make_test_group()));
}

TEST(GroupFile, RefusesEveryPrefix) {
  const Bytes bytes = write_group(make_test_group());
  for (std::size_t size = 0; size < bytes.size(); ++size) {
    ASSERT_FALSE(parse_group(ByteSpan(bytes).first(size)).ok()) << size;
  }
}

TEST(GroupFile, RefusesATrailingByte) {
  Bytes bytes = write_group(make_test_group());
  bytes.push_back(0);
  EXPECT_EQ(parse_group(bytes).status().code(), StatusCode::kDataLoss);
}

TEST(GroupFile, RefusesAChangedBitInEveryByte) {
  Bytes bytes = write_group(make_test_group());
  for (std::size_t byte = 0; byte < bytes.size(); ++byte) {
    const auto bit = static_cast<std::uint8_t>(1 << (byte % 8));
    bytes[byte] ^= bit;
    ASSERT_FALSE(parse_group(bytes).ok()) << "byte " << byte << " bit " << byte % 8;
    bytes[byte] ^= bit;
  }
}

// Writes the file anew with a changed header or changed tensors and a digest that fits.
struct Parts {
  json header;
  SafetensorsMetadata metadata;
  std::vector<std::int64_t> ends;
  std::vector<float> logprobs;
  std::vector<std::int32_t> tokens;
  std::vector<std::uint8_t> sources;
  bool surplus = false;

  Parts() {
    const Bytes bytes = write_group(make_test_group());
    const auto file = SafetensorsFile::parse(bytes).value();
    header = json::parse(file.metadata().at("group"));
    ends = file.find("ends")->copy<std::int64_t>();
    logprobs = file.find("logprobs")->copy<float>();
    tokens = file.find("tokens")->copy<std::int32_t>();
    sources = file.find("sources")->copy<std::uint8_t>();
  }
  Bytes write(std::string text = {}) const {
    if (text.empty()) text = header.dump();
    const auto size = [](const auto& v) { return TensorShape{static_cast<std::int64_t>(v.size())}; };
    std::vector<TensorToWrite> tensors = {{"ends", DType::kI64, size(ends), as_bytes(std::span(ends))},
                                          {"logprobs", DType::kF32, size(logprobs), as_bytes(std::span(logprobs))},
                                          {"tokens", DType::kI32, size(tokens), as_bytes(std::span(tokens))},
                                          {"sources", DType::kU8, size(sources), as_bytes(std::span(sources))}};
    if (surplus) tensors.push_back({"surplus", DType::kU8, size(sources), as_bytes(std::span(sources))});
    Sha256 hash;
    hash.update(as_bytes(text));
    for (const auto& tensor : tensors) hash.update(tensor.bytes);
    SafetensorsMetadata all = metadata;
    all.emplace("group", text);
    all.emplace("sha256", hash.finish().to_hex());
    return write_safetensors(tensors, all).value();
  }
};

TEST(GroupFile, IsWhatTheTestsTakeApart) { EXPECT_EQ(Parts().write(), write_group(make_test_group())); }

struct BadFile {
  const char* name;
  std::function<void(Parts&)> spoil;
  const char* complaint;
};

class GroupFileRefuses : public testing::TestWithParam<BadFile> {};

TEST_P(GroupFileRefuses, AndSaysWhy) {
  Parts parts;
  GetParam().spoil(parts);
  const auto parsed = parse_group(parts.write());
  ASSERT_FALSE(parsed.ok());
  EXPECT_EQ(parsed.status().code(), StatusCode::kDataLoss);
  EXPECT_NE(parsed.status().message().find(GetParam().complaint), std::string::npos) << parsed.status().to_string();
}

json& episode(Parts& p) { return p.header["episodes"][0]; }

INSTANTIATE_TEST_SUITE_P(
    Everything, GroupFileRefuses,
    testing::Values(
        BadFile{"MissingField", [](Parts& p) { p.header.erase("seed"); }, "seed is missing"},
        BadFile{"UnknownField", [](Parts& p) { p.header["colour"] = 1; }, "not the one encoding"},
        BadFile{"FieldOfAnotherType", [](Parts& p) { p.header["seed"] = "1"; }, "seed is of another type"},
        BadFile{"NegativeNumber", [](Parts& p) { p.header["task"] = -1; }, "task is of another type"},
        BadFile{"LargeAttempt", [](Parts& p) { p.header["attempt"] = std::uint64_t{1} << 32; }, "too large"},
        BadFile{"LargePrompt", [](Parts& p) { p.header["prompt_tokens"] = std::uint64_t{1} << 31; }, "too large"},
        BadFile{"FormatAsText", [](Parts& p) { p.header["format"] = "1"; }, "format is of another type"},
        BadFile{"AnotherUnit", [](Parts& p) { p.header["unit"] = "labels"; }, "unit"},
        BadFile{"UnknownSplit", [](Parts& p) { p.header["split"] = "test"; }, "split"},
        BadFile{"UnknownArithmetic", [](Parts& p) { p.header["arithmetic"] = "exact"; }, "arithmetic"},
        BadFile{"ApproximateAsNumber", [](Parts& p) { p.header["arithmetic"] = 0; }, "not the one encoding"},
        BadFile{"ShortDigest", [](Parts& p) { p.header["corpus"] = "12"; }, "corpus"},
        BadFile{"UpperCaseDigest", [](Parts& p) { p.header["corpus"] = std::string(64, 'A'); }, ""},
        BadFile{"SamplingAsList", [](Parts& p) { p.header["sampling"] = json::array(); }, "sampling"},
        BadFile{"TemperatureAsText", [](Parts& p) { p.header["sampling"]["temperature"] = "1"; }, "temperature"},
        BadFile{"TemperatureThatIsNoFloat", [](Parts& p) { p.header["sampling"]["temperature"] = 0.7; },
                "not the one encoding"},
        BadFile{"LargeTopK", [](Parts& p) { p.header["sampling"]["top_k"] = 1ull << 40; }, "top_k"},
        BadFile{"TopPAsText", [](Parts& p) { p.header["sampling"]["top_p"] = "1"; }, "top_p"},
        BadFile{"MetadataNotBase64", [](Parts& p) { p.header["task_metadata"] = "?"; }, "task_metadata"},
        BadFile{"AnotherGroupId", [](Parts& p) { p.header["group"] = std::string(32, '0'); }, "assignment"},
        BadFile{"VersionsAsObject", [](Parts& p) { p.header["versions"] = json::object(); }, "versions"},
        BadFile{"VersionWithoutState", [](Parts& p) { p.header["versions"][0].erase("state"); }, "state is missing"},
        BadFile{"UnusedVersion",
                [](Parts& p) {
                  p.header["versions"].push_back({{"version", 9}, {"state", sha256("x").to_hex()}});
                },
                "not the one encoding"},
        BadFile{"SpanOfUnlistedVersion", [](Parts& p) { p.header["versions"].erase(0); }, "no state digest"},
        BadFile{"EpisodesAsObject", [](Parts& p) { p.header["episodes"] = json::object(); }, "episodes"},
        BadFile{"NoEpisodes",
                [](Parts& p) {
                  p.header["episodes"] = json::array();
                  p.ends.clear();
                  p.tokens.clear();
                  p.sources.clear();
                  p.logprobs.clear();
                },
                "0 episodes"},
        BadFile{"EpisodeAsNumber", [](Parts& p) { episode(p) = 1; }, "episode 0"},
        BadFile{"UnknownEnd", [](Parts& p) { episode(p)["end"] = "bored"; }, "episode 0: end"},
        BadFile{"RewardAsText", [](Parts& p) { episode(p)["reward"] = "1"; }, "reward"},
        BadFile{"RewardNull", [](Parts& p) { episode(p)["reward"] = nullptr; }, "reward"},
        BadFile{"MetricsAsList", [](Parts& p) { episode(p)["metrics"] = json::array(); }, "metrics"},
        BadFile{"MetricAsText", [](Parts& p) { episode(p)["metrics"]["searches"] = "1"; }, "metrics"},
        BadFile{"TurnsAsNumber", [](Parts& p) { episode(p)["turns"] = 5; }, "turns"},
        BadFile{"TurnAsText", [](Parts& p) { episode(p)["turns"][0] = "5"; }, "turns"},
        BadFile{"LargeTurn", [](Parts& p) { episode(p)["turns"][0] = 1ull << 31; }, "turns"},
        BadFile{"SpansAsNumber", [](Parts& p) { episode(p)["spans"] = 5; }, "spans"},
        BadFile{"SpanOfTwo",
                [](Parts& p) {
                  episode(p)["spans"][0] = {3, 5};
                },
                "[begin, end, version, context]"},
        BadFile{"SpanWithoutContext", [](Parts& p) { episode(p)["spans"][0].erase(3); },
                "[begin, end, version, context]"},
        BadFile{"SpanContextAsNumber", [](Parts& p) { episode(p)["spans"][0][3] = 1; },
                "[begin, end, version, context]"},
        BadFile{"SpanOfUnknownContext", [](Parts& p) { episode(p)["spans"][0][3] = "old"; }, "one of the known"},
        BadFile{"FirstSpanOfAKeptContext", [](Parts& p) { episode(p)["spans"][0][3] = "kept"; }, "span 0 keeps"},
        BadFile{"SpanBeginNegative", [](Parts& p) { episode(p)["spans"][0][0] = -3; }, "begin"},
        BadFile{"SpanEndAsText", [](Parts& p) { episode(p)["spans"][0][1] = "5"; }, "end"},
        BadFile{"SurplusTensor", [](Parts& p) { p.surplus = true; }, "5 tensors"},
        BadFile{"EndsOfAnotherLength", [](Parts& p) { p.ends = {15}; }, "tensor ends"},
        BadFile{"EndsThatFall",
                [](Parts& p) {
                  p.ends = {16, 15};
                },
                "outside"},
        BadFile{"NegativeEnds",
                [](Parts& p) {
                  p.ends = {-1, 15};
                },
                "outside"},
        BadFile{"NegativeTotal",
                [](Parts& p) {
                  p.ends = {9, -15};
                },
                "tensor"},
        BadFile{"MissingLogprob", [](Parts& p) { p.logprobs.pop_back(); }, "tensor logprobs"},
        BadFile{"MissingToken", [](Parts& p) { p.tokens.pop_back(); }, "tensor tokens"},
        BadFile{"MissingSource", [](Parts& p) { p.sources.pop_back(); }, "tensor sources"},
        BadFile{"UnknownSource", [](Parts& p) { p.sources[0] = 9; }, "prompt"},
        BadFile{"TokenMovedBetweenEpisodes", [](Parts& p) { p.ends[0] = 8; }, "episode 0"},
        BadFile{"WrongDigest", [](Parts& p) { p.metadata["sha256"] = std::string(64, '0'); }, "digest"},
        BadFile{"HeaderNotJson", [](Parts& p) { p.metadata["group"] = std::string("{"); }, "group header"},
        BadFile{"HeaderAsNumber", [](Parts& p) { p.metadata["group"] = std::string("1"); }, "format is missing"},
        BadFile{"SurplusMetadata", [](Parts& p) { p.metadata["more"] = std::string("1"); }, "not the one encoding"}),
    [](const auto& info) { return info.param.name; });

TEST(GroupFile, RefusesAHeaderWrittenWithSpaces) {
  Parts parts;
  const auto parsed = parse_group(parts.write(parts.header.dump(1)));
  ASSERT_FALSE(parsed.ok());
  EXPECT_EQ(parsed.status().message(), "not the one encoding of its content");
}

TEST(GroupFile, RefusesASafetensorsFileOfSomethingElse) {
  EXPECT_NE(parse_group(write_safetensors({}).value()).status().message().find("no group header"), std::string::npos);
  const auto no_digest = parse_group(write_safetensors({}, {{"group", "{}"}}).value());
  EXPECT_NE(no_digest.status().message().find("no digest"), std::string::npos);
}

TEST(GroupFile, OfAnotherFormatSaysWhoIsToBeUpgraded) {
  Parts parts;
  parts.header["format"] = 3;
  const Status newer = parse_group(parts.write()).status();
  EXPECT_EQ(newer.code(), StatusCode::kFailedPrecondition);
  EXPECT_NE(newer.message().find("upgrade it"), std::string::npos) << newer.to_string();
  parts.header["format"] = 1;
  const Status older = parse_group(parts.write()).status();
  EXPECT_EQ(older.code(), StatusCode::kFailedPrecondition);
  EXPECT_NE(older.message().find("upgrade the one that wrote"), std::string::npos) << older.to_string();
}

// The lines of docs/formats/group.md, run by the safetensors package that we did not write.
TEST(GroupFile, IsReadByPythonInFiveLines) {
  FLOTILLA_NEED_ORACLE();
  const std::string page = read_text_file("docs/formats/group.md").value();
  const auto begin = page.find("```python\n") + 10;
  const std::string lines = page.substr(begin, page.find("```", begin) - begin);
  const std::string checks = R"(
assert header["format"] == 2 and header["seed"] == 2**64 - 1 and header["split"] == "train", header
assert [e["reward"] for e in header["episodes"]] == [1.0, 0.0]
assert [t.tolist() for t in tokens] == [[1, 2, 3, 40, 41, 50, 51, 52, 42], [1, 2, 3, 44, 45, 46]], tokens
assert f.get_tensor("logprobs")[4] == -1.5 and f.get_tensor("sources").tolist()[:6] == [0, 0, 0, 1, 1, 2]
import hashlib
data = open(path, "rb").read()
data = data[8 + int.from_bytes(data[:8], "little"):]
assert hashlib.sha256(f.metadata()["group"].encode() + data).hexdigest() == f.metadata()["sha256"]
)";
  TemporaryFolder scratch;
  const auto script = scratch.path() / "read.py";
  const std::string text = fmt::format("path = \"{}\"\n{}{}", kGolden, lines, checks);
  ASSERT_TRUE(write_file_atomically(script, text).ok());
  EXPECT_TRUE(run_python(script)) << text;
}

}  // namespace
}  // namespace flotilla
