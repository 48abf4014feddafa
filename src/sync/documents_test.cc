// head, manifest, run.json and anchor: what is written is read again, and nothing else is.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <functional>

#include <fmt/format.h>

#include "base/files.h"
#include "sync/anchor.h"
#include "sync/apply_delta_for_tests.h"
#include "sync/delta.h"
#include "sync/head.h"
#include "sync/manifest.h"
#include "sync/publisher.h"
#include "sync/run_spec.h"
#include "sync/signed_json.h"
#include "sync/test_model.h"

namespace flotilla {
namespace {

using nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

const PublicKey& key() { return test_key()->public_key(); }

Head a_head() {
  Head head;
  head.run = "owner/run";
  head.version = Version(12);
  head.manifest = sha256("manifest");
  head.generation = Generation(3);
  head.writer = "0123456789abcdef";
  head.sequence = 40;
  head.state = RunState::kPaused;
  head.wanted = 64;
  return head;
}

Manifest a_manifest() {
  Manifest manifest;
  manifest.run = "owner/run";
  manifest.version = Version(12);
  manifest.generation = Generation(3);
  manifest.state = sha256("state");
  manifest.history = sha256("history");
  manifest.delta = DeltaObject{describe_object(Bytes(100, 1)), kDeltaCodec, Version(10), sha256("base")};
  manifest.skips = {DeltaObject{describe_object(Bytes(300, 3)), kDeltaCodec, Version(2), sha256("older")},
                    DeltaObject{describe_object(Bytes(200, 4)), kDeltaCodec, Version(6), sha256("old")}};
  manifest.anchor = describe_object(Bytes(2 * kChunkBytes + 5, 2));
  manifest.changed = 17;
  manifest.total = 1000;
  manifest.optimizer_step = 12;
  manifest.time = std::chrono::milliseconds(1767225600123);
  return manifest;
}

RunSpec a_spec() {
  RunSpec spec;
  spec.run = "owner/run";
  spec.seed = 0xfedcba9876543210;
  spec.model_config = sha256("config");
  spec.tokenizer = sha256("tokenizer");
  spec.environment = sha256("environment");
  spec.environment_name = "dictionary";
  spec.environment_digest = sha256("rules");
  spec.temperature = 0.7f;
  spec.top_p = 0.95f;
  spec.top_k = 40;
  spec.swap = WeightSwap::kKeep;
  spec.claims = 64;
  spec.learner_key = key();
  return spec;
}

// A document with one member changed and signed again.
std::string edited(const char* kind, const std::string& text, const std::function<void(json&)>& edit) {
  json body = json::parse(text);
  body.erase("signature");
  edit(body);
  return sign_json(kind, body, *test_key());
}

// What every reader of signed documents refuses. `read` returns the status of reading a text.
void expect_strict(const char* kind, const std::string& good, const std::function<Status(const std::string&)>& read) {
  ASSERT_TRUE(read(good).ok()) << read(good).to_string();
  for (std::size_t size = 0; size < good.size(); ++size) EXPECT_FALSE(read(good.substr(0, size)).ok()) << size;
  for (std::size_t bit = 0; bit < good.size() * 8; bit += 3) {
    std::string flipped = good;
    flipped[bit / 8] = static_cast<char>(flipped[bit / 8] ^ (1 << bit % 8));
    EXPECT_FALSE(read(flipped).ok()) << "bit " << bit;
  }
  EXPECT_EQ(read(edited(kind, good, [](json& body) { body["zz"] = 1; })).code(), StatusCode::kDataLoss);
  EXPECT_EQ(read(edited("other", good, [](json&) {})).code(), StatusCode::kPermissionDenied);
  const json body = json::parse(good);
  for (const auto& [name, value] : body.items()) {
    if (name == "signature") continue;
    const auto check = [&, &name = name](const char* what, const std::function<void(json&)>& edit) {
      const Status status = read(edited(kind, good, edit));
      // A number that says which program is needed may ask for a newer one.
      EXPECT_TRUE(status.code() == StatusCode::kDataLoss || status.code() == StatusCode::kFailedPrecondition)
          << what << " " << name << ": " << status.to_string();
    };
    if (name != "anchor" && name != "delta" && name != "skips" && name != "swap" && name != "claims")
      check("without", [&, &name = name](json& b) { b.erase(name); });
    check("null", [&, &name = name](json& b) { b[name] = nullptr; });
    check("list", [&, &name = name](json& b) { b[name] = json::array(); });
    if (!value.is_string()) check("text", [&, &name = name](json& b) { b[name] = "x"; });
    if (value.is_string()) check("number", [&, &name = name](json& b) { b[name] = 5; });
    if (value.is_number_integer()) {
      check("negative", [&, &name = name](json& b) { b[name] = -1; });
      check("fraction", [&, &name = name](json& b) { b[name] = 1.5; });
    }
  }
}

TEST(Head, IsReadAsWritten) {
  const std::string text = head_to_json(a_head(), *test_key());
  const auto head = head_from_json(text, key());
  ASSERT_TRUE(head.ok()) << head.status().to_string();
  EXPECT_EQ(*head, a_head());
  EXPECT_EQ(head_to_json(*head, *test_key()), text);
}

TEST(Head, IsReadStrictly) {
  const std::string good = head_to_json(a_head(), *test_key());
  expect_strict("head", good, [](const std::string& text) { return head_from_json(text, key()).status(); });
  EXPECT_EQ(head_from_json(good, other_key()->public_key()).status().code(), StatusCode::kPermissionDenied);
  EXPECT_EQ(head_from_json(std::string(5000, ' '), key()).status().code(), StatusCode::kDataLoss);
  for (const auto& [name, value] : std::vector<std::pair<const char*, json>>{
           {"state", "resting"}, {"generation", 0u}, {"sequence", 0u}, {"manifest", "00"}, {"version", 1ull << 63}}) {
    const std::string text = edited("head", good, [&](json& body) { body[name] = value; });
    EXPECT_THAT(head_from_json(text, key()).status().message(), HasSubstr(fmt::format("field {}", name)));
  }
}

TEST(Manifest, IsReadAsWritten) {
  Manifest manifest = a_manifest();
  const auto round_trip = [&] { return manifest_from_json(manifest_to_json(manifest, *test_key()), key()); };
  EXPECT_EQ(*round_trip(), manifest);
  EXPECT_EQ(manifest.anchor->chunks.size(), 3u);
  manifest.anchor.reset();
  EXPECT_EQ(*round_trip(), manifest);
  manifest.anchor = describe_object(Bytes(kChunkBytes, 2));
  manifest.skips.clear();
  EXPECT_EQ(*round_trip(), manifest);
  for (const int older : {2, 1}) {
    Manifest old = manifest;
    old.format = older;
    if (older == 1) old.history.reset();
    const std::string text = manifest_to_json(old, *test_key());
    EXPECT_EQ(manifest_from_json(text, key()).value(), old);
    EXPECT_THAT(text, HasSubstr(fmt::format("\"manifest_format\":{},", older)));
  }
  manifest.delta.reset();
  manifest.changed = 0;
  EXPECT_EQ(*round_trip(), manifest);
  manifest.anchor.reset();
  EXPECT_EQ(round_trip().status().code(), StatusCode::kDataLoss);
}

TEST(Manifest, IsReadStrictly) {
  const auto read = [](const std::string& text) { return manifest_from_json(text, key()).status(); };
  const std::string good = manifest_to_json(a_manifest(), *test_key());
  expect_strict("manifest", good, read);
  const auto message = [&](const std::function<void(json&)>& edit) {
    return read(edited("manifest", good, edit)).to_string();
  };
  EXPECT_THAT(message([](json& b) { b["delta"]["base"] = 12u; }), HasSubstr("delta.base"));
  EXPECT_THAT(message([](json& b) { b["delta"]["extra"] = 12u; }), HasSubstr("unknown field delta.extra"));
  EXPECT_THAT(message([](json& b) { b["delta"]["chunks"].push_back(sha256("x").to_hex()); }),
              HasSubstr("delta.chunks"));
  EXPECT_THAT(message([](json& b) { b["delta"]["chunks"][0] = "x"; }), HasSubstr("delta.chunks"));
  EXPECT_THAT(message([](json& b) { b["delta"]["chunks"][0] = 1; }), HasSubstr("delta.chunks"));
  EXPECT_THAT(message([](json& b) { b["anchor"]["chunks"].erase(0); }), HasSubstr("anchor.chunks"));
  EXPECT_THAT(message([](json& b) { b["anchor"]["size"] = 0u; }), HasSubstr("anchor.size"));
  EXPECT_THAT(message([](json& b) { b["anchor"]["size"] = ~0ull; }), HasSubstr("anchor.size"));
  EXPECT_THAT(message([](json& b) { b["anchor"].erase("sha256"); }), HasSubstr("anchor.sha256"));
  EXPECT_THAT(message([](json& b) { b["changed"] = 1001u; }), HasSubstr("changed"));
  EXPECT_THAT(message([](json& b) { b.erase("delta"), b.erase("skips"); }), HasSubstr("changed"));
  EXPECT_THAT(message([](json& b) { b.erase("delta"); }), HasSubstr("skips"));
  EXPECT_THAT(message([](json& b) { b["skips"] = json::array(); }), HasSubstr("skips"));
  EXPECT_THAT(message([](json& b) { b["skips"][1]["base"] = 10u; }), HasSubstr("skips[1].base"));
  EXPECT_THAT(message([](json& b) { b["skips"][0]["base"] = 6u; }), HasSubstr("skips[0].base"));
  EXPECT_THAT(message([](json& b) { b["skips"][0]["extra"] = 6u; }), HasSubstr("unknown field skips[0].extra"));
  EXPECT_THAT(message([](json& b) { b["skips"][0]["codec"] = kDeltaCodec + 1u; }), HasSubstr("upgrade flotilla"));
  EXPECT_THAT(message([](json& b) { b["skips"] = json(kSkipsMax + 1, b["skips"][0]); }), HasSubstr("skips"));
  EXPECT_THAT(message([](json& b) { b["delta"]["codec"] = kDeltaCodec + 1u; }), HasSubstr("upgrade flotilla"));
  EXPECT_THAT(message([](json& b) { b["manifest_format"] = kManifestFormat + 1u; }), HasSubstr("upgrade flotilla"));
  EXPECT_THAT(message([](json& b) { b["manifest_format"] = 0u; }), HasSubstr("manifest_format"));
  EXPECT_THAT(message([](json& b) { b["manifest_format"] = 2u; }), HasSubstr("unknown field skips"));
  EXPECT_THAT(message([](json& b) { b.erase("skips"), b["manifest_format"] = 1u; }),
              HasSubstr("unknown field history"));
}

TEST(Manifest, AnObjectIsCheckedChunkByChunk) {
  Bytes bytes(kChunkBytes + 10, 7);
  const StoredObject object = describe_object(bytes);
  EXPECT_THAT(wrong_chunks(object, bytes), IsEmpty());
  bytes[kChunkBytes + 3] ^= 1;
  EXPECT_THAT(wrong_chunks(object, bytes), ElementsAre(1));
  bytes[kChunkBytes - 1] ^= 1;
  EXPECT_THAT(wrong_chunks(object, bytes), ElementsAre(0, 1));
}

TEST(RunSpec, IsReadAsWritten) {
  const std::string text = run_spec_to_json(a_spec(), *test_key());
  EXPECT_THAT(text, HasSubstr("\"temperature\":0.7,"));
  const auto spec = run_spec_from_json(text);
  ASSERT_TRUE(spec.ok()) << spec.status().to_string();
  EXPECT_EQ(*spec, a_spec());
}

TEST(RunSpec, NamesNoSwapWhenAGroupIsOfOneVersion) {
  RunSpec spec = a_spec();
  spec.swap = WeightSwap::kDrain;
  const std::string text = run_spec_to_json(spec, *test_key());
  EXPECT_THAT(text, testing::Not(HasSubstr("swap")));
  EXPECT_EQ(run_spec_from_json(text).value(), spec);
}

TEST(RunSpec, NamesNoClaimsWhenWorkersMakeNone) {
  RunSpec spec = a_spec();
  spec.claims = 0;
  const std::string text = run_spec_to_json(spec, *test_key());
  EXPECT_THAT(text, testing::Not(HasSubstr("claims")));
  EXPECT_EQ(run_spec_from_json(text).value(), spec);
}

TEST(RunSpec, IsReadStrictly) {
  const auto read = [](const std::string& text) { return run_spec_from_json(text).status(); };
  const std::string good = run_spec_to_json(a_spec(), *test_key());
  expect_strict("run", good, read);
  const auto status = [&](const char* name, const json& value) {
    return read(edited("run", good, [&](json& body) { body[name] = value; }));
  };
  for (const char* name : {"hub_format", "arithmetic", "scale_group"}) {
    EXPECT_EQ(status(name, 1000u).code(), StatusCode::kFailedPrecondition) << name;
    EXPECT_THAT(status(name, 1000u).message(), HasSubstr("upgrade flotilla"));
  }
  for (const auto& [name, value] : std::vector<std::pair<const char*, json>>{{"group_size", 0u},
                                                                             {"group_size", 70000u},
                                                                             {"temperature", -0.5},
                                                                             {"temperature", 1e300},
                                                                             {"top_p", 0.0},
                                                                             {"top_p", 1.5},
                                                                             {"top_k", 1ull << 31},
                                                                             {"claims", 0u},
                                                                             {"claims", 65u},
                                                                             {"swap", "drain"},
                                                                             {"swap", "now"},
                                                                             {"run", "no-slash"},
                                                                             {"run", "a/b/c"},
                                                                             {"run", "../b"},
                                                                             {"environment_name", "a/b"},
                                                                             {"environment_name", ""},
                                                                             {"tokenizer", std::string(64, 'g')},
                                                                             {"learner_key", "ab"},
                                                                             {"learner_key", "zz"}}) {
    EXPECT_EQ(status(name, value).code(), StatusCode::kDataLoss) << name << " " << value;
    EXPECT_THAT(status(name, value).message(), HasSubstr(name == std::string("learner_key") ? "hex" : name));
  }
  // Signed by one key and carrying another.
  EXPECT_EQ(read(run_spec_to_json(a_spec(), *other_key())).code(), StatusCode::kPermissionDenied);
}

TEST(RunSpec, IsPublishedOnceAndComparedAfterwards) {
  const auto store = make_memory_store();
  const HubLayout layout{"owner/run"};
  EXPECT_EQ(fetch_run_spec(*store, layout, "").status().code(), StatusCode::kNotFound);
  ASSERT_TRUE(publish_run_spec(*store, layout, a_spec(), *test_key()).ok());
  EXPECT_TRUE(publish_run_spec(*store, layout, a_spec(), *test_key()).ok());
  RunSpec other = a_spec();
  other.seed = 5;
  const Status refused = publish_run_spec(*store, layout, other, *test_key());
  EXPECT_EQ(refused.code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(refused.message(), HasSubstr("another run"));
  EXPECT_EQ(publish_run_spec(*store, {"owner/else"}, a_spec(), *test_key()).code(), StatusCode::kInvalidArgument);
  other.temperature = -1;
  EXPECT_FALSE(publish_run_spec(*make_memory_store(), layout, other, *test_key()).ok());

  EXPECT_EQ(*fetch_run_spec(*store, layout, ""), a_spec());
  EXPECT_EQ(*fetch_run_spec(*store, layout, fingerprint(key())), a_spec());
  EXPECT_EQ(fetch_run_spec(*store, layout, fingerprint(other_key()->public_key())).status().code(),
            StatusCode::kPermissionDenied);
  ASSERT_TRUE(store->put("owner/copy/run.json", store->get(layout.run_spec())->bytes).ok());
  const auto copied = fetch_run_spec(*store, {"owner/copy"}, "");
  EXPECT_EQ(copied.status().code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(copied.status().message(), HasSubstr("belongs to the run 'owner/run'"));
}

// All of an anchor, checked as a reader does.
Result<GridState> decode_anchor(const ModelDescription& description, ByteSpan bytes, const AnchorLabel& label,
                                DeltaHistory* history = nullptr) {
  FLOTILLA_ASSIGN_OR_RETURN(const OpenAnchor anchor,
                            open_anchor(description, Bytes(bytes.begin(), bytes.end()), label));
  GridState state;
  for (std::size_t i = 0; i < description.tensors.size(); ++i) {
    state.tensors.push_back(anchor.read(static_cast<TensorIndex>(i)));
  }
  FLOTILLA_RETURN_IF_ERROR(check_grid(description, state));
  if (history != nullptr) *history = anchor.history;
  return state;
}

class AnchorTest : public ::testing::Test {
 protected:
  const ModelDescription description_ = test_description();
  PhiloxStream random_{5, 0};
  const GridState state_ = random_state(description_, random_);
  const DeltaHistory history_ =
      encode_delta(description_, random_state(description_, random_), no_history(description_), state_)->history;
  const AnchorLabel label_{"owner/run", Version(7), state_digest(description_, state_)};
  const Bytes bytes_ = encode_anchor(description_, state_, history_, label_).value();
};

TEST_F(AnchorTest, IsReadAsWritten) {
  DeltaHistory history;
  const auto state = decode_anchor(description_, bytes_, label_, &history);
  ASSERT_TRUE(state.ok()) << state.status().to_string();
  EXPECT_EQ(*state, state_);
  EXPECT_EQ(history, history_);
  EXPECT_EQ(encode_anchor(description_, state_, history_, label_).value(), bytes_);
}

TEST_F(AnchorTest, OfAnotherRunVersionOrStateIsRefused) {
  for (AnchorLabel other :
       {AnchorLabel{"owner/else", label_.version, label_.state}, AnchorLabel{label_.run, Version(8), label_.state},
        AnchorLabel{label_.run, label_.version, {}}}) {
    EXPECT_EQ(decode_anchor(description_, bytes_, other).status().code(), StatusCode::kDataLoss);
  }
}

TEST_F(AnchorTest, WithMoreMetadataThanItHasIsRefused) {
  std::string text(as_text(bytes_));
  const std::string field = "\"anchor_format\":";
  const std::size_t at = text.find(field);
  // As long as before: the padding behind the header gives way.
  const std::string extra = "\"a\":\"\",";
  const std::size_t end = 8 + static_cast<std::uint8_t>(text[0]) + 256u * static_cast<std::uint8_t>(text[1]);
  const std::size_t padding = end - 1 - text.find_last_not_of(' ', end - 1);
  text.insert(at, extra);
  if (padding >= extra.size()) {
    text.erase(end, extra.size());
  } else {
    text.insert(end + extra.size(), std::string(8 - extra.size() % 8, ' '));
    text[0] = static_cast<char>(text[0] + 8);
  }
  const auto state = decode_anchor(description_, as_bytes(text), label_);
  EXPECT_EQ(state.status().code(), StatusCode::kDataLoss);
  EXPECT_THAT(state.status().message(), HasSubstr("5 metadata"));
}

TEST_F(AnchorTest, OfAnotherModelIsRefused) {
  ModelDescription other = description_;
  other.tensors[2].rows = 6;
  EXPECT_EQ(decode_anchor(other, bytes_, label_).status().code(), StatusCode::kDataLoss);
  other = description_;
  other.tensors.pop_back();
  EXPECT_EQ(decode_anchor(other, bytes_, label_).status().code(), StatusCode::kDataLoss);
  other = description_;
  other.tensors[0].name = "renamed";
  EXPECT_EQ(decode_anchor(other, bytes_, label_).status().code(), StatusCode::kDataLoss);
  other = description_;
  other.tensors[1].kind = TensorKind::kMatrix;
  EXPECT_EQ(decode_anchor(other, bytes_, label_).status().code(), StatusCode::kDataLoss);
}

TEST_F(AnchorTest, EveryPrefixIsRefusedAndEveryFlippedBitSeenByTheDigest) {
  for (std::size_t size = 0; size < bytes_.size(); ++size) {
    EXPECT_FALSE(decode_anchor(description_, ByteSpan(bytes_).first(size), label_).ok()) << size;
  }
  for (std::size_t bit = 0; bit < bytes_.size() * 8; bit += 11) {
    Bytes flipped = bytes_;
    flipped[bit / 8] ^= static_cast<std::uint8_t>(1u << bit % 8);
    const auto state = decode_anchor(description_, flipped, label_);
    if (!state.ok() || *state == state_) continue;
    EXPECT_NE(state_digest(description_, *state), label_.state) << bit;
  }
}

TEST_F(AnchorTest, ANewerFormatTellsToUpgrade) {
  std::string text(as_text(bytes_));
  const std::string field = "\"anchor_format\":\"";
  text[text.find(field) + field.size()] = '3';
  const auto state = decode_anchor(description_, as_bytes(text), label_);
  EXPECT_EQ(state.status().code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(state.status().message(), HasSubstr("upgrade"));
}

// Written by the first version of each format; later programs must read them. The key pairs are gone: only the learner
// of the golden files could sign more.
class GoldenTest : public ::testing::Test {
 protected:
  explicit GoldenTest(const char* folder = "sync") : folder_(folder) {}
  std::string text(const char* name) const {
    return read_text_file(fmt::format("tests/golden/{}/{}", folder_, name)).value();
  }
  const char* const folder_;
  const RunSpec spec_ = run_spec_from_json(text("run.json")).value();
};

TEST_F(GoldenTest, DocumentsStayReadable) {
  EXPECT_EQ(spec_.run, "owner/golden");
  EXPECT_EQ(spec_.seed, 20260131u);
  EXPECT_EQ(spec_.temperature, 0.7f);
  const Head head = head_from_json(text("head"), spec_.learner_key).value();
  EXPECT_EQ(head.version, Version(1));
  EXPECT_EQ(head.state, RunState::kPaused);
  EXPECT_EQ(head.wanted, 64);
  EXPECT_EQ(head.manifest, sha256(text("manifest.json")));
}

TEST_F(GoldenTest, AnchorAndDeltaStayReadable) {
  const ModelDescription description = test_description();
  const Manifest manifest = manifest_from_json(text("manifest.json"), spec_.learner_key).value();
  ASSERT_TRUE(manifest.delta);
  const std::string delta = text("delta");
  ASSERT_EQ(delta.size(), manifest.delta->object.size);
  ASSERT_THAT(wrong_chunks(manifest.delta->object, as_bytes(delta)), IsEmpty());
  const std::string anchor = text("anchor");
  const AnchorLabel label{spec_.run, manifest.delta->base, manifest.delta->base_state};
  GridState base = decode_anchor(description, as_bytes(anchor), label).value();
  EXPECT_EQ(state_digest(description, base), manifest.delta->base_state);
  DeltaHistory history = no_history(description);
  const GridState state = apply_delta(description, base, as_bytes(delta), history).value();
  EXPECT_EQ(state_digest(description, state), manifest.state);
  EXPECT_EQ(encode_delta(description, base, no_history(description), state)->changed, manifest.changed);
}

// A version in the middle of a run, with the anchor of the one before it.
class Golden2Test : public GoldenTest {
 protected:
  Golden2Test() : GoldenTest("sync-2") {}
};

TEST_F(Golden2Test, WhatHasAHistoryStaysReadableAndIsWrittenAlike) {
  const ModelDescription description = test_description();
  const Head head = head_from_json(text("head"), spec_.learner_key).value();
  EXPECT_EQ(head.manifest, sha256(text("manifest.json")));
  const Manifest manifest = manifest_from_json(text("manifest.json"), spec_.learner_key).value();
  ASSERT_TRUE(manifest.history && manifest.delta && manifest.anchor);
  EXPECT_EQ(manifest.delta->codec, 2);
  const std::string delta = text("delta"), anchor = text("anchor"), base_anchor = text("base_anchor");
  EXPECT_EQ(describe_object(as_bytes(delta)), manifest.delta->object);
  EXPECT_EQ(describe_object(as_bytes(anchor)), *manifest.anchor);

  DeltaHistory before, after;
  const AnchorLabel base_label{spec_.run, manifest.delta->base, manifest.delta->base_state};
  const GridState base = decode_anchor(description, as_bytes(base_anchor), base_label, &before).value();
  EXPECT_EQ(state_digest(description, base), manifest.delta->base_state);
  EXPECT_NE(before, no_history(description));
  const AnchorLabel label{spec_.run, manifest.version, manifest.state};
  const GridState state = decode_anchor(description, as_bytes(anchor), label, &after).value();
  EXPECT_EQ(state_digest(description, state), manifest.state);
  EXPECT_EQ(history_digest(after), *manifest.history);

  DeltaHistory history = before;
  EXPECT_EQ(apply_delta(description, base, as_bytes(delta), history).value(), state);
  EXPECT_EQ(history, after);

  const EncodedDelta again = encode_delta(description, base, before, state).value();
  EXPECT_EQ(as_text(again.bytes), delta);
  EXPECT_EQ(again.changed, manifest.changed);
  EXPECT_GT(again.rescaled_groups, 0);
  EXPECT_EQ(as_text(encode_anchor(description, state, after, label).value()), anchor);
}

// A version that skips lead to, with the anchor that one of them begins at.
class Golden3Test : public GoldenTest {
 protected:
  Golden3Test() : GoldenTest("sync-3") {}
};

TEST_F(Golden3Test, SkipsStayReadableAndAreWrittenAlike) {
  const ModelDescription description = test_description();
  const Manifest manifest = manifest_from_json(text("manifest.json"), spec_.learner_key).value();
  EXPECT_EQ(head_from_json(text("head"), spec_.learner_key).value().manifest, sha256(text("manifest.json")));
  const DeltaHistory nothing = no_history(description);
  EXPECT_EQ(manifest.history, history_digest(nothing));
  ASSERT_EQ(manifest.skips.size(), 2u);
  const DeltaObject& skip = manifest.skips[0];
  EXPECT_EQ(describe_object(as_bytes(text("skip"))), skip.object);
  const GridState base =
      decode_anchor(description, as_bytes(text("base_anchor")), {spec_.run, skip.base, skip.base_state}).value();
  DeltaHistory history = nothing;
  const GridState state = apply_delta(description, base, as_bytes(text("skip")), history).value();
  EXPECT_EQ(state_digest(description, state), manifest.state);
  EXPECT_EQ(as_text(encode_delta(description, base, nothing, state).value().bytes), text("skip"));
  const AnchorLabel label{spec_.run, manifest.version, manifest.state};
  EXPECT_EQ(as_text(encode_anchor(description, state, nothing, label).value()), text("anchor"));
}

// Makes the files of Golden3Test in the folder that FLOTILLA_MAKE_GOLDEN names.
TEST(MakeGolden, VersionsWithSkips) {
  const char* const folder = std::getenv("FLOTILLA_MAKE_GOLDEN");
  if (folder == nullptr) GTEST_SKIP() << "FLOTILLA_MAKE_GOLDEN names no folder";
  constexpr int kVersions = 6;
  const ModelDescription description = test_description();
  const auto store = make_memory_store();
  const HubLayout layout{"owner/golden"};
  const std::shared_ptr<const SigningKey> learner_key = SigningKey::generate().value();
  RunSpec spec = a_spec();
  spec.run = layout.prefix;
  spec.learner_key = learner_key->public_key();
  ASSERT_TRUE(publish_run_spec(*store, layout, spec, *learner_key).ok());
  const auto learner =
      Publisher::open(*store, layout, description, learner_key, {kVersions, kVersions / 2}, null_event_sink()).value();
  PhiloxStream random(2026, 3);
  std::vector<GridState> states = {random_state(description, random)};
  ASSERT_TRUE(learner->publish(states[0], 0).ok());
  for (std::size_t version = 1; version <= kVersions; ++version) {
    const double scales = version == kVersions ? 0.03 : 0;
    GridState next =
        changed_state(description, states.back(), {.integers = 0.006, .vectors = 0.01, .scales = scales}, random);
    for (std::size_t i = 0; version > 1 && i < next.tensors[0].q.size(); ++i) {
      // Half of what changed last changes back.
      const std::int8_t before = states[version - 2].tensors[0].q[i], now = states[version - 1].tensors[0].q[i];
      if (before != now && random.below(2) == 0) next.tensors[0].q[i] = before;
    }
    ASSERT_TRUE(learner->publish(next, version).ok());
    states.push_back(std::move(next));
  }
  const Version last(kVersions);
  for (const auto& [name, key] :
       std::vector<std::pair<const char*, std::string>>{{"run.json", layout.run_spec()},
                                                        {"head", layout.head()},
                                                        {"base_anchor", layout.anchor(Version(0))},
                                                        {"skip", layout.skip(last, Version(0))},
                                                        {"anchor", layout.anchor(last)},
                                                        {"manifest.json", layout.manifest(last)}}) {
    ASSERT_TRUE(write_file_atomically(std::filesystem::path(folder) / name, as_text(store->get(key)->bytes)).ok());
  }
}

}  // namespace
}  // namespace flotilla
