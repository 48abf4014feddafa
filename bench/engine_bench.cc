// Decode and prefill speed of the engine on SmolLM2-135M's shapes with random weights.
//
//   engine_bench [--json FILE] [--isa scalar|avx2|avx512] [--threads LIST] [--batch LIST] [--steps N] [--two-byte]
//
// Decoding starts from prompts of 128 tokens shared by groups of 8, samples at temperature 1 and reads the logprob of
// each sampled token. "a core" divides by the processor time of all threads: it stays meaningful on a busy machine.
#include <fmt/format.h>

#include <cstring>
#include <ctime>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/clock.h"
#include "engine/engine.h"
#include "engine/random_model.h"

namespace flotilla {
namespace {

struct Arguments {
  std::string json;
  Isa isa = Isa::kAuto;
  std::vector<int> threads = {1, 2};
  std::vector<int> batches = {1, 8, 32, 64};
  int steps = 24;
  ActivationWidth width = ActivationWidth::kOne;
};

struct Speed {
  double tokens_a_second = 0;
  double tokens_a_core_second = 0;
};

// "1,2,4"; empty when the text is no such list.
std::vector<int> parse_list(const char* text) {
  std::vector<int> values;
  for (const char* at = text; *at != 0; at += *at == ',') {
    const char* const begin = at;
    values.push_back(static_cast<int>(std::strtol(begin, const_cast<char**>(&at), 10)));
    if (at == begin || values.back() < 1 || (*at != 0 && *at != ',')) return {};
  }
  return values;
}

ModelDescription smollm2() {
  ModelDescription d;
  d.architecture = "llama";
  d.layers = 30;
  d.hidden = 576;
  d.heads = 9;
  d.kv_heads = 3;
  d.head_dim = 64;
  d.ffn = 1536;
  d.vocabulary = 49152;
  d.context = 2048;
  d.norm_epsilon = 1e-5f;
  d.rope_theta = 100000;
  d.tied_embeddings = true;
  return d;
}

double processor_seconds() {
  timespec now{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

template <typename Work>
Speed measure(double tokens, const Work& work) {
  const double processor = processor_seconds();
  const auto begin = system_clock().monotonic();
  work();
  const double wall = static_cast<double>((system_clock().monotonic() - begin).count()) * 1e-9;
  return {tokens / wall, tokens / (processor_seconds() - processor)};
}

std::vector<TokenId> random_prompt(std::uint64_t stream, int length, std::int32_t vocabulary) {
  PhiloxStream random(3, stream);
  std::vector<TokenId> tokens;
  for (int i = 0; i < length; ++i)
    tokens.push_back(static_cast<TokenId>(random.below(static_cast<std::uint64_t>(vocabulary))));
  return tokens;
}

Speed decode(Engine& engine, int batch, int steps) {
  constexpr int kGroup = 8;
  std::vector<SequenceId> sequences;
  for (int first = 0; first < batch; first += kGroup) {
    const auto tokens = random_prompt(static_cast<std::uint64_t>(first), 128, engine.description().vocabulary);
    const SequenceId root = engine.open().value();
    const Chunk chunk{root, tokens, {}};
    FLOTILLA_CHECK(engine.forward({&chunk, 1}).ok());
    for (int i = first; i < std::min(batch, first + kGroup); ++i) sequences.push_back(engine.fork(root).value());
    engine.close(root);
  }
  std::vector<TokenId> last(sequences.size(), 1);
  std::vector<Readout> readouts(sequences.size());
  std::vector<Chunk> chunks;
  for (std::size_t i = 0; i < sequences.size(); ++i) chunks.push_back({sequences[i], {&last[i], 1}, {&readouts[i], 1}});
  const Speed speed = measure(static_cast<double>(batch) * steps, [&] {
    for (int step = 0; step < steps; ++step) {
      for (std::size_t i = 0; i < sequences.size(); ++i) {
        readouts[i].key = {.seed = 1,
                           .group = 2,
                           .episode = static_cast<std::uint32_t>(i),
                           .position = static_cast<std::uint32_t>(step)};
      }
      const auto results = engine.forward(chunks).value();
      for (std::size_t i = 0; i < results.size(); ++i) last[i] = results[i].token;
    }
  });
  for (const SequenceId sequence : sequences) engine.close(sequence);
  return speed;
}

Speed prefill(Engine& engine, int length) {
  const auto tokens = random_prompt(77, length, engine.description().vocabulary);
  return measure(length, [&] {
    const SequenceId sequence = engine.open().value();
    Readout readout;
    readout.offset = length - 1;
    const Chunk chunk{sequence, tokens, {&readout, 1}};
    FLOTILLA_CHECK(engine.forward({&chunk, 1}).ok());
    engine.close(sequence);
  });
}

std::string machine() {
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);) {
    if (line.starts_with("model name")) return line.substr(line.find(':') + 2);
  }
  return "unknown";
}

int run(const Arguments& arguments, const std::string& command) {
  const RandomModel model = random_model(smollm2(), 1).value();
  nlohmann::ordered_json figures = nlohmann::ordered_json::array();
  const auto report = [&](const std::string& figure, const Speed& speed) {
    fmt::print("{:<44} {:>9.1f} tokens/s {:>9.1f} a core\n", figure, speed.tokens_a_second, speed.tokens_a_core_second);
    std::fflush(stdout);
    figures.push_back({{"figure", figure},
                       {"value", speed.tokens_a_second},
                       {"unit", "tokens/s"},
                       {"against", nullptr},
                       {"ratio", nullptr},
                       {"goal", nullptr},
                       {"met", nullptr},
                       {"samples", 1},
                       {"machine", machine()},
                       {"command", command}});
  };
  for (const int threads : arguments.threads) {
    auto created =
        Engine::create(model.description,
                       {.threads = threads, .isa = arguments.isa, .activations = arguments.width, .kv_blocks = 1024});
    if (!created.ok()) {
      fmt::print(stderr, "{}\n", created.status().to_string());
      return 1;
    }
    Engine& engine = **created;
    const Speed load = measure(1, [&] { FLOTILLA_CHECK(engine.load(model.state).ok()); });
    const Speed again = measure(1, [&] { FLOTILLA_CHECK(engine.load(model.state).ok()); });
    fmt::print("{} with {} thread(s), load {:.0f} ms, again {:.0f} ms\n", isa_name(engine.isa()), threads,
               1e3 / load.tokens_a_second, 1e3 / again.tokens_a_second);
    decode(engine, 1, 2);  // touches the weights and the pool once
    for (const int batch : arguments.batches) {
      report(fmt::format("decode {} sequences, {} threads", batch, threads), decode(engine, batch, arguments.steps));
    }
    report(fmt::format("prefill 512, {} threads", threads), prefill(engine, 512));
  }
  if (!arguments.json.empty()) std::ofstream(arguments.json) << figures.dump(2) << "\n";
  return 0;
}

}  // namespace
}  // namespace flotilla

int main(int argc, char** argv) {
  using namespace flotilla;
  Arguments arguments;
  std::string command = "engine_bench";
  for (int i = 1; i < argc; ++i) command += fmt::format(" {}", argv[i]);
  for (int i = 1; i < argc; ++i) {
    const std::string_view name = argv[i];
    if (name == "--two-byte") {
      arguments.width = ActivationWidth::kTwo;
      continue;
    }
    const char* value = i + 1 < argc ? argv[++i] : nullptr;
    if (value != nullptr && name == "--json")
      arguments.json = value;
    else if (value != nullptr && name == "--threads")
      arguments.threads = parse_list(value);
    else if (value != nullptr && name == "--batch")
      arguments.batches = parse_list(value);
    else if (value != nullptr && name == "--steps")
      arguments.steps = std::atoi(value);
    else if (value != nullptr && name == "--isa" && std::strcmp(value, "scalar") == 0)
      arguments.isa = Isa::kScalar;
    else if (value != nullptr && name == "--isa" && std::strcmp(value, "avx2") == 0)
      arguments.isa = Isa::kAvx2;
    else if (value != nullptr && name == "--isa" && std::strcmp(value, "avx512") == 0)
      arguments.isa = Isa::kAvx512;
    else {
      fmt::print(stderr, "engine_bench: {} is not understood; the head of the source lists the options\n", name);
      return 2;
    }
  }
  return run(arguments, command);
}
