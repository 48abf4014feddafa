#include "engine/engine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "base/hashing.h"
#include "engine/golden_for_tests.h"
#include "engine/random_model.h"

// What the contract promises besides equal bits: errors, blocks, weights.
namespace flotilla {
namespace {

ModelDescription sizes() {
  ModelDescription d;
  d.architecture = "llama";
  d.layers = 2;
  d.hidden = 64;
  d.heads = 4;
  d.kv_heads = 2;
  d.head_dim = 16;
  d.ffn = 96;
  d.vocabulary = 300;
  d.context = 64;
  d.norm_epsilon = 1e-5f;
  d.rope_theta = 10000;
  d.tied_embeddings = false;
  return d;
}

const RandomModel& model() {
  static const RandomModel model = random_model(sizes(), 21).value();
  return model;
}

std::unique_ptr<Engine> make_engine(std::int64_t kv_blocks = 32, const GridState& state = model().state) {
  auto engine = Engine::create(model().description, {.threads = 2, .kv_blocks = kv_blocks}).value();
  EXPECT_TRUE(engine->load(state).ok());
  return engine;
}

Status append(Engine& engine, SequenceId id, const std::vector<TokenId>& tokens,
              const std::vector<Readout>& readouts = {}) {
  const Chunk chunk{id, tokens, readouts};
  return engine.forward({&chunk, 1}).status();
}

Readout read_at(std::int32_t offset, std::optional<TokenId> target = {}, SamplingParams sampling = {}) {
  Readout readout;
  readout.offset = offset;
  readout.target = target;
  readout.sampling = sampling;
  return readout;
}

std::vector<TokenId> tokens(int count) {
  std::vector<TokenId> out;
  for (int i = 0; i < count; ++i) out.push_back(i * 37 % 300);
  return out;
}

TEST(Engine, RefusesOptionsOutOfRange) {
  for (const EngineOptions& options : std::vector<EngineOptions>{{.threads = 0, .kv_blocks = 1},
                                                                 {.threads = 257, .kv_blocks = 1},
                                                                 {.threads = 1, .kv_blocks = 0},
                                                                 {.threads = 1, .kv_blocks = -1}}) {
    EXPECT_EQ(Engine::create(model().description, options).status().code(), StatusCode::kInvalidArgument);
  }
  EXPECT_EQ(Engine::create(model().description, {.kv_blocks = std::int64_t{1} << 29}).status().code(),
            StatusCode::kResourceExhausted);
}

TEST(Engine, RefusesSizesThatTheKernelsDoNotTake) {
  const auto refused = [](auto change) {
    ModelDescription d = sizes();
    change(d);
    const auto described = describe_model(d);
    ASSERT_TRUE(described.ok()) << described.status().to_string();
    EXPECT_EQ(Engine::create(*described, {.kv_blocks = 1}).status().code(), StatusCode::kInvalidArgument);
  };
  refused([](ModelDescription& d) { d.hidden = 72; });
  refused([](ModelDescription& d) { d.ffn = 90; });
  refused([](ModelDescription& d) { d.head_dim = 8; });
  refused([](ModelDescription& d) { d.head_dim = 512; });
  ModelDescription mixed = model().description;
  mixed.vocabulary += 1;
  EXPECT_EQ(Engine::create(mixed, {.kv_blocks = 1}).status().code(), StatusCode::kInvalidArgument);
  mixed = model().description;
  mixed.blocks.pop_back();
  EXPECT_EQ(Engine::create(mixed, {.kv_blocks = 1}).status().code(), StatusCode::kInvalidArgument);
}

TEST(Engine, RefusesToComputeWithoutWeights) {
  auto engine = Engine::create(model().description, {.kv_blocks = 4}).value();
  const SequenceId id = engine->open().value();
  EXPECT_EQ(append(*engine, id, {1}).code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(engine->logprobs(tokens(3)).status().code(), StatusCode::kFailedPrecondition);
}

TEST(Engine, TakesNewWeightsOnlyWhileNoSequenceIsOpen) {
  const RandomModel other = random_model(sizes(), 22).value();
  auto engine = make_engine();
  const auto before = engine->logprobs(tokens(20)).value();
  const SequenceId id = engine->open().value();
  EXPECT_EQ(engine->load(other.state).code(), StatusCode::kFailedPrecondition);
  engine->close(id);
  EXPECT_EQ(engine->logprobs(tokens(20)).value(), before);
  ASSERT_TRUE(engine->load(other.state).ok());
  EXPECT_EQ(engine->logprobs(tokens(20)).value(), make_engine(32, other.state)->logprobs(tokens(20)).value());
  ASSERT_TRUE(engine->load(model().state).ok());
  EXPECT_EQ(engine->logprobs(tokens(20)).value(), before);
}

TEST(Engine, KeepsOpenSequencesUnderOtherWeightsWhereAskedTo) {
  const RandomModel other = random_model(sizes(), 22).value();
  const auto next = [](Engine& engine, SequenceId id) {
    const std::vector<TokenId> one = {7};
    const Readout readout = read_at(0, 9);
    const Chunk chunk{id, one, {&readout, 1}};
    return engine.forward({&chunk, 1}).value()[0].target_logprob;
  };
  // The second state, or the first one again, under a sequence that the first one has computed.
  const auto kept = [&](const GridState& state) {
    const auto engine = make_engine();
    const SequenceId id = engine->open().value();
    EXPECT_TRUE(append(*engine, id, tokens(20)).ok());
    EXPECT_TRUE(engine->load(state, OpenSequences::kKeep).ok());
    EXPECT_EQ(engine->length(id), 20);
    return next(*engine, id);
  };
  const auto anew = [&](const GridState& state) {
    const auto engine = make_engine(32, state);
    const SequenceId id = engine->open().value();
    EXPECT_TRUE(append(*engine, id, tokens(20)).ok());
    return next(*engine, id);
  };
  EXPECT_EQ(kept(model().state), anew(model().state));
  EXPECT_NE(kept(other.state), anew(other.state)) << "the keys and values are of the first state";
  EXPECT_NE(kept(other.state), anew(model().state)) << "the last token is of the second";
}

TEST(Engine, KeepsItsWeightsWhenNewOnesAreBroken) {
  auto engine = make_engine();
  const auto before = engine->logprobs(tokens(9)).value();
  GridState broken = model().state;
  broken.tensors.back().vector_scale = std::numeric_limits<float>::quiet_NaN();
  broken.tensors.front().scales.front() = 0x7fc0;
  EXPECT_EQ(engine->load(broken).code(), StatusCode::kDataLoss);
  GridState short_one = model().state;
  short_one.tensors.pop_back();
  EXPECT_FALSE(engine->load(short_one).ok());
  EXPECT_EQ(engine->logprobs(tokens(9)).value(), before);
}

// Sizes that leave padding everywhere: short groups, rows and vocabularies that fill no panel, biases of q, k and v.
TEST(Engine, GivesItsTensorsBackAsItTookThem) {
  for (const bool tied : {true, false}) {
    ModelDescription padded = sizes();
    padded.architecture = "qwen2";
    padded.hidden = 80;
    padded.heads = 5;
    padded.head_dim = 16;
    padded.kv_heads = 1;
    padded.ffn = 112;
    padded.vocabulary = 1101;
    padded.tied_embeddings = tied;
    const RandomModel first = random_model(padded, 5).value(), second = random_model(padded, 6).value();
    for (const Isa isa : supported_isas()) {
      for (const ActivationWidth width : {ActivationWidth::kOne, ActivationWidth::kTwo}) {
        SCOPED_TRACE(isa_name(isa));
        const auto engine =
            Engine::create(first.description, {.threads = 2, .isa = isa, .activations = width, .kv_blocks = 4}).value();
        for (const RandomModel* model : {&first, &second}) {
          ASSERT_TRUE(engine->load(model->state).ok());
          for (std::size_t i = 0; i < model->state.tensors.size(); ++i) {
            EXPECT_EQ(engine->tensor(static_cast<TensorIndex>(i)), model->state.tensors[i])
                << first.description.tensors[i].name;
          }
        }
      }
    }
  }
}

TEST(Engine, TakesWeightsThatAreMadeOutOfItsOwn) {
  GridState next = model().state;
  for (GridTensor& tensor : next.tensors) {
    for (auto& q : tensor.q) q = static_cast<std::int8_t>(-q);
    for (auto& q : tensor.vector_q) q = static_cast<std::int16_t>(q / 2);
  }
  const auto engine = make_engine();
  const GridSource negated = [&](const TensorVisitor& visit) {
    for (std::size_t i = 0; i < next.tensors.size(); ++i) {
      GridTensor tensor = engine->tensor(static_cast<TensorIndex>(i));
      for (auto& q : tensor.q) q = static_cast<std::int8_t>(-q);
      for (auto& q : tensor.vector_q) q = static_cast<std::int16_t>(q / 2);
      visit(static_cast<TensorIndex>(i), tensor);
    }
    return ok_status();
  };
  ASSERT_TRUE(engine->load(negated).ok());
  EXPECT_EQ(engine->logprobs(tokens(20)).value(), make_engine(32, next)->logprobs(tokens(20)).value());
}

TEST(Engine, ComputesNothingWithWeightsThatCameInPart) {
  const auto engine = make_engine();
  const GridSource broken = [&](const TensorVisitor& visit) {
    visit(0, model().state.tensors[0]);
    return data_loss("tensor 1");
  };
  EXPECT_EQ(engine->load(broken).code(), StatusCode::kDataLoss);
  EXPECT_EQ(engine->logprobs(tokens(20)).status().code(), StatusCode::kFailedPrecondition);
  ASSERT_TRUE(engine->load(model().state).ok());
  EXPECT_TRUE(engine->logprobs(tokens(20)).ok());
}

void set_scales(GridState& state, TensorIndex tensor, float scale) {
  auto& scales = state.tensors[static_cast<std::size_t>(tensor)].scales;
  std::fill(scales.begin(), scales.end(), float_to_bf16(scale));
}

TEST(Engine, NamesTheLayerWhereActivationsBecomeInfinite) {
  const DecoderBlock& last = model().description.blocks[1];
  GridState state = model().state;
  set_scales(state, last.gate, 0x1p+100f);
  set_scales(state, last.up, 0x1p+100f);
  auto engine = make_engine(32, state);
  const SequenceId id = engine->open().value();
  const Status inside = append(*engine, id, tokens(20));
  EXPECT_EQ(inside.code(), StatusCode::kDataLoss);
  EXPECT_THAT(inside.message(), testing::HasSubstr("layer 1"));
  EXPECT_EQ(engine->length(id), 0);
  EXPECT_EQ(engine->usage().blocks_used, 0);

  state = model().state;
  set_scales(state, last.up, 0x1p+60f);
  set_scales(state, last.down, 0x1p+100f);
  auto another = make_engine(32, state);
  const Status after = append(*another, another->open().value(), tokens(20), {read_at(19)});
  EXPECT_EQ(after.code(), StatusCode::kDataLoss);
  EXPECT_THAT(after.message(), testing::HasSubstr("head"));
}

TEST(Engine, KeysAboveTheRangeOfHalfPrecisionAreAnError) {
  GridState state = model().state;
  set_scales(state, model().description.blocks[0].k, 1000.0f);
  auto engine = make_engine(32, state);
  const Status status = append(*engine, engine->open().value(), tokens(20));
  EXPECT_EQ(status.code(), StatusCode::kDataLoss);
  EXPECT_THAT(status.message(), testing::HasSubstr("layer 0"));
}

TEST(Engine, RefusesWrongTokensPositionsAndReadouts) {
  auto engine = make_engine();
  const SequenceId id = engine->open().value();
  const auto code = [&](const std::vector<TokenId>& of, const std::vector<Readout>& readouts = {}) {
    const StatusCode got = append(*engine, id, of, readouts).code();
    EXPECT_EQ(engine->length(id), 0);
    EXPECT_EQ(engine->usage().blocks_used, 0);
    return got;
  };
  EXPECT_EQ(code({-1}), StatusCode::kInvalidArgument);
  EXPECT_EQ(code({300}), StatusCode::kInvalidArgument);
  EXPECT_EQ(code(tokens(65)), StatusCode::kInvalidArgument);
  EXPECT_EQ(code({1, 2}, {read_at(2)}), StatusCode::kInvalidArgument);
  EXPECT_EQ(code({1, 2}, {read_at(-1)}), StatusCode::kInvalidArgument);
  EXPECT_EQ(code({1, 2}, {read_at(1), read_at(1)}), StatusCode::kInvalidArgument);
  EXPECT_EQ(code({1, 2}, {read_at(1, 300)}), StatusCode::kInvalidArgument);
  EXPECT_EQ(code({1, 2}, {read_at(1, {}, {.top_p = 2})}), StatusCode::kInvalidArgument);
  EXPECT_EQ(engine->logprobs({}).status().code(), StatusCode::kInvalidArgument);
  const auto one = tokens(1);
  const Chunk twice[] = {{id, one, {}}, {id, one, {}}};
  EXPECT_EQ(engine->forward(twice).status().code(), StatusCode::kInvalidArgument);
  engine->close(id);
  EXPECT_EQ(append(*engine, id, {1}).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(engine->fork(id).status().code(), StatusCode::kInvalidArgument);
}

TEST(Engine, AFullContextIsUsedToItsLastPosition) {
  auto engine = make_engine();
  const SequenceId id = engine->open().value();
  ASSERT_TRUE(append(*engine, id, tokens(64), {read_at(63)}).ok());
  EXPECT_EQ(engine->length(id), 64);
  EXPECT_EQ(append(*engine, id, {1}).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(append(*engine, id, {}).code(), StatusCode::kOk);
}

TEST(Engine, AppendsAllChunksOrNoneWhenBlocksRunOut) {
  auto engine = make_engine(4);
  const SequenceId a = engine->open().value();
  const SequenceId b = engine->open().value();
  ASSERT_TRUE(append(*engine, a, tokens(20)).ok());
  EXPECT_EQ(engine->usage().blocks_used, 2);
  EXPECT_EQ(engine->blocks_needed(a, 12), 0);
  EXPECT_EQ(engine->blocks_needed(a, 13), 1);
  EXPECT_EQ(engine->blocks_needed(b, 33), 3);
  const auto thirteen = tokens(13);
  const auto seventeen = tokens(17);
  const Chunk chunks[] = {{a, thirteen, {}}, {b, seventeen, {}}};
  EXPECT_EQ(engine->forward(chunks).status().code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(engine->length(a), 20);
  EXPECT_EQ(engine->length(b), 0);
  EXPECT_EQ(engine->usage().blocks_used, 2);
  EXPECT_TRUE(append(*engine, b, tokens(17)).ok());
  EXPECT_EQ(engine->usage().blocks_used, 4);
}

TEST(Engine, ForksShareBlocksUntilOneWrites) {
  auto engine = make_engine(16);
  const SequenceId root = engine->open().value();
  ASSERT_TRUE(append(*engine, root, tokens(20)).ok());
  const SequenceId a = engine->fork(root).value();
  const SequenceId b = engine->fork(root).value();
  EXPECT_EQ(engine->length(a), 20);
  EXPECT_EQ(engine->usage().blocks_used, 2);
  EXPECT_EQ(engine->usage().sequences, 3);
  EXPECT_EQ(engine->blocks_needed(a, 1), 1);  // a copy of the half-filled one
  ASSERT_TRUE(append(*engine, a, {5}).ok());
  EXPECT_EQ(engine->usage().blocks_used, 3);
  engine->close(root);
  EXPECT_EQ(engine->usage().blocks_used, 3);
  EXPECT_EQ(engine->blocks_needed(b, 1), 0);  // now the only owner
  ASSERT_TRUE(append(*engine, b, {6}).ok());
  EXPECT_EQ(engine->usage().blocks_used, 3);
  engine->close(a);
  engine->close(b);
  EXPECT_EQ(engine->usage().blocks_used, 0);
  EXPECT_EQ(engine->usage().tokens_computed, 22);
}

TEST(Engine, LoadsTheSameWeightsWithAnyNumberOfThreads) {
  const GridState other = random_model(sizes(), 22).value().state;
  for (const Isa isa : supported_isas()) {
    std::vector<float> expected;
    for (const int threads : {1, 2, 3, 5, 16, 64}) {
      SCOPED_TRACE(std::string(isa_name(isa)) + ", " + std::to_string(threads) + " threads");
      const EngineOptions options{.threads = threads, .isa = isa, .kv_blocks = 8};
      const auto engine = Engine::create(model().description, options).value();
      ASSERT_TRUE(engine->load(other).ok());
      const auto before = engine->logprobs(tokens(33)).value();
      ASSERT_TRUE(engine->load(model().state).ok());
      const auto logprobs = engine->logprobs(tokens(33)).value();
      if (expected.empty()) expected = logprobs;
      EXPECT_EQ(logprobs, expected);
      EXPECT_NE(logprobs, before);
    }
  }
}

TEST(Engine, ClosedHandlesAreGivenOutAgainAndOldKvIsNotSeen) {
  auto engine = make_engine(4);
  const auto expected = engine->logprobs(tokens(33)).value();
  for (int i = 0; i < 20; ++i) {
    const SequenceId id = engine->open().value();
    EXPECT_EQ(id.value(), 0);
    ASSERT_TRUE(append(*engine, id, tokens(1 + i * 3)).ok());
    engine->close(id);
    EXPECT_EQ(engine->logprobs(tokens(33)).value(), expected);
  }
}

TEST(Engine, LogprobsAreThoseOfTheReadouts) {
  auto engine = make_engine();
  const auto logprobs = engine->logprobs(tokens(30)).value();
  double sum = 0;
  for (const float logprob : logprobs) sum += std::exp(static_cast<double>(logprob));
  EXPECT_NEAR(sum, 1, 1e-6);
  for (const TokenId target : {0, 150, 299}) {
    const SequenceId id = engine->open().value();
    const auto of = tokens(30);
    const Readout readout = read_at(29, target);
    const Chunk chunk{id, of, {&readout, 1}};
    const ReadoutResult result = engine->forward({&chunk, 1}).value()[0];
    EXPECT_EQ(result.target_logprob, logprobs[static_cast<std::size_t>(target)]);
    EXPECT_EQ(result.most_likely, std::max_element(logprobs.begin(), logprobs.end()) - logprobs.begin());
    engine->close(id);
  }
}

TEST(Engine, BiasesAreAddedToQueriesKeysAndValues) {
  // Llama has none; the description allows them.
  RandomModel with = model();
  for (DecoderBlock& block : with.description.blocks) {
    const auto bias = [&](TensorIndex of, std::int16_t q) {
      const std::int64_t rows = with.description.tensors[static_cast<std::size_t>(of)].rows;
      with.description.tensors.push_back(
          {.name = "bias", .gguf_name = "bias", .kind = TensorKind::kVector, .rows = 1, .cols = rows});
      GridTensor tensor;
      tensor.vector_q.assign(static_cast<std::size_t>(rows), q);
      tensor.vector_scale = 1;
      with.state.tensors.push_back(std::move(tensor));
      return static_cast<TensorIndex>(with.description.tensors.size() - 1);
    };
    block.q_bias = bias(block.q, 0);
    block.v_bias = bias(block.v, 0);
  }
  const auto plain = make_engine()->logprobs(tokens(10)).value();
  auto engine = Engine::create(with.description, {.kv_blocks = 8}).value();
  ASSERT_TRUE(engine->load(with.state).ok());
  EXPECT_EQ(engine->logprobs(tokens(10)).value(), plain);
  for (GridTensor& tensor : with.state.tensors) {
    if (tensor.vector_scale == 1) std::fill(tensor.vector_q.begin(), tensor.vector_q.end(), std::int16_t{1});
  }
  ASSERT_TRUE(engine->load(with.state).ok());
  EXPECT_NE(engine->logprobs(tokens(10)).value(), plain);
}

TEST(Engine, MemoryIsEstimatedFromTheSizes) {
  const EngineOptions options{.kv_blocks = 10};
  const std::int64_t all = Engine::memory_bytes(model().description, options, 32);
  EXPECT_GT(all, model().description.parameters());
  EXPECT_EQ(Engine::memory_bytes(model().description, {.kv_blocks = 11}, 32) - all, 2 * 2 * 2 * 16 * 16 * 2);
  EXPECT_GT(Engine::memory_bytes(model().description, options, 64), all);
}

// Ids and logprobs of 40 sampled tokens on forks of one prompt. engine_golden_test.cc has larger models.
TEST(Engine, ArithmeticOneGivesTheGoldenDigest) {
  static_assert(kArithmetic == 1);
  for (const Isa isa : supported_isas()) {
    auto engine = Engine::create(model().description, {.isa = isa, .kv_blocks = 32}).value();
    ASSERT_TRUE(engine->load(model().state).ok());
    const SequenceId root = engine->open().value();
    ASSERT_TRUE(append(*engine, root, tokens(21)).ok());
    Sha256 digest;
    for (std::uint32_t episode = 0; episode < 2; ++episode) {
      const SequenceId id = engine->fork(root).value();
      TokenId last = 7;
      for (std::uint32_t step = 0; step < 20; ++step) {
        Readout readout;
        readout.sampling = {.temperature = 0.8f, .top_k = episode == 0 ? 0 : 50, .top_p = episode == 0 ? 1.0f : 0.9f};
        readout.key = {.seed = 11, .group = 12, .episode = episode, .position = 22 + step};
        const Chunk chunk{id, {&last, 1}, {&readout, 1}};
        const ReadoutResult result = engine->forward({&chunk, 1}).value()[0];
        digest.update_value(result.token);
        digest.update_value(result.logprob);
        last = result.token;
      }
      engine->close(id);
    }
    EXPECT_EQ(digest.finish().to_hex(), "76d970db5d9347e38511f2878764ca71c0cdd12f75c8e207a3b1558c500200c2")
        << isa_name(isa) << ". " << kIfADigestChanged;
  }
}

}  // namespace
}  // namespace flotilla
