// Our ids against those of PyPI tokenizers and transformers: tests/oracles/tokenizer_oracle.py makes both sides' input.
#include <array>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "base/bytes.h"
#include "base/files.h"
#include "model/chat.h"
#include "model/nfc.h"
#include "model/oracle_for_tests.h"
#include "model/tokenizer.h"

namespace flotilla {
namespace {

namespace fs = std::filesystem;

struct Sample {
  std::string text;
  std::vector<TokenId> ids;
};

// The folder of what the oracle made, for one test.
class Oracle {
 public:
  explicit Oracle(fs::path folder) : folder_(std::move(folder)) {}

  // NAME.json, with the chat template of NAME.jinja where there is one.
  std::shared_ptr<const Tokenizer> load(const std::string& name) const {
    auto tokenizer = Tokenizer::from_json(read_text_file(folder_ / (name + ".json")).value());
    EXPECT_TRUE(tokenizer.ok()) << tokenizer.status().to_string();
    TokenizerSpec spec = tokenizer.value()->spec();
    if (const auto chat_template = read_text_file(folder_ / (name + ".jinja")); chat_template.ok()) {
      spec.chat_template = *chat_template;
    }
    return Tokenizer::create(std::move(spec)).value();
  }

  std::vector<Sample> samples(const std::string& file) const {
    const Bytes bytes = read_file(folder_ / file).value();
    ByteReader reader(bytes);
    std::vector<Sample> samples(reader.get<std::uint32_t>().value());
    for (Sample& sample : samples) {
      sample.text = as_text(reader.get_bytes(reader.get<std::uint32_t>().value()).value());
      sample.ids.resize(reader.get<std::uint32_t>().value());
      const ByteSpan ids = reader.get_bytes(sample.ids.size() * sizeof(TokenId)).value();
      std::copy(ids.begin(), ids.end(), reinterpret_cast<std::uint8_t*>(sample.ids.data()));
    }
    return samples;
  }

  void expect_equal_ids(const Tokenizer& tokenizer, const std::string& file, bool parse_special) const {
    int wrong = 0;
    for (const Sample& sample : samples(file)) {
      const std::vector<TokenId> ids = tokenizer.encode(sample.text, parse_special);
      if (ids == sample.ids) continue;
      ADD_FAILURE() << file << ": " << testing::PrintToString(sample.text.substr(0, 200)) << "\n  ours "
                    << testing::PrintToString(ids) << "\n  theirs " << testing::PrintToString(sample.ids);
      if (++wrong == 5) break;
    }
  }

  // The bytes that the vocabulary lacks are the only ones that may get lost.
  void expect_decode_inverts_encode(const Tokenizer& tokenizer, const std::string& file) const {
    std::array<bool, 256> known{};
    for (TokenId id = 0; id < tokenizer.vocabulary(); ++id) {
      const std::string_view bytes = tokenizer.token_bytes(id);
      if (bytes.size() == 1) known[static_cast<std::uint8_t>(bytes[0])] = true;
    }
    for (const Sample& sample : samples(file)) {
      std::string expected;
      for (const char c : sample.text) {
        if (known[static_cast<std::uint8_t>(c)]) expected += c;
      }
      ASSERT_EQ(tokenizer.decode(sample.ids), expected);
    }
  }

  void expect_tokenizers_reads(const Tokenizer& tokenizer, const std::string& strings) const {
    const fs::path json = folder_ / "ours.json";
    ASSERT_TRUE(write_file_atomically(json, tokenizer.to_json()).ok());
    EXPECT_TRUE(run_python("tests/oracles/tokenizer_oracle.py", "check", json, folder_ / strings));
  }

  void expect_equal_chats(const Tokenizer& tokenizer, const std::string& file) const {
    for (const Sample& chat : samples(file)) {
      const auto json = nlohmann::json::parse(chat.text);
      std::vector<ChatMessage> messages;
      for (const auto& message : json["messages"]) messages.push_back({message["role"], message["content"]});
      const auto ids = encode_chat(tokenizer, messages, json["open"]);
      ASSERT_TRUE(ids.ok()) << ids.status().to_string();
      ASSERT_EQ(*ids, chat.ids) << chat.text;
    }
  }

 private:
  fs::path folder_;
};

// One test, since making the input takes most of the time.
TEST(TokenizerOracle, IdsJsonAndChatsEqualThoseOfTokenizersAndTransformers) {
  FLOTILLA_NEED_ORACLE();
  TemporaryFolder folder;
  ASSERT_TRUE(run_python("tests/oracles/tokenizer_oracle.py", "make", packaged_model().value(), folder.path()));
  const Oracle oracle(folder.path());

  const auto smollm = oracle.load("smollm");
  EXPECT_EQ(smollm->spec().pre_tokenizer, "smollm");
  EXPECT_EQ(oracle.samples("smollm.bin").size(), 100'000u);
  oracle.expect_equal_ids(*smollm, "smollm.bin", false);
  oracle.expect_equal_ids(*smollm, "special.bin", true);
  oracle.expect_decode_inverts_encode(*smollm, "smollm.bin");
  oracle.expect_tokenizers_reads(*smollm, "smollm.bin");
  oracle.expect_equal_chats(*smollm, "chat.bin");

  const auto gpt2 = oracle.load("gpt2");
  EXPECT_EQ(gpt2->spec().pre_tokenizer, "gpt-2");
  oracle.expect_equal_ids(*gpt2, "gpt2.bin", false);
  oracle.expect_tokenizers_reads(*gpt2, "gpt2.bin");
}

TEST(TokenizerOracle, Qwen2sIdsJsonAndChatsEqualThoseOfTokenizersAndTransformers) {
  FLOTILLA_NEED_ORACLE();
  TemporaryFolder folder;
  ASSERT_TRUE(run_python("tests/oracles/qwen2_oracle.py", "tokenizer", folder.path()));
  const Oracle oracle(folder.path());

  const auto qwen2 = oracle.load("qwen2");
  EXPECT_EQ(qwen2->spec().pre_tokenizer, "qwen2");
  EXPECT_EQ(oracle.samples("qwen2.bin").size(), 40'000u);
  oracle.expect_equal_ids(*qwen2, "qwen2.bin", false);
  oracle.expect_equal_ids(*qwen2, "special.bin", true);
  for (const Sample& sample : oracle.samples("qwen2.bin")) {
    ASSERT_EQ(qwen2->decode(sample.ids), to_nfc(sample.text)) << testing::PrintToString(sample.text.substr(0, 200));
  }
  oracle.expect_tokenizers_reads(*qwen2, "qwen2.bin");
  oracle.expect_equal_chats(*qwen2, "chat.bin");
}

}  // namespace
}  // namespace flotilla
