#include <functional>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "model/bpe.h"
#include "model/tokenizer.h"

namespace flotilla {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;

std::shared_ptr<const Tokenizer> made_tokenizer(const std::string& pre_tokenizer = "smollm") {
  TokenizerSpec spec;
  for (int b = 0; b < 256; ++b) spec.tokens.push_back(bytes_to_alphabet(std::string(1, static_cast<char>(b))));
  spec.merges = {{"a", "b"}};
  spec.tokens.insert(spec.tokens.end(), {"ab", "<|end|>", "<tool>"});
  spec.special = {257};
  spec.added = {258};
  spec.eos = 257;
  spec.pre_tokenizer = pre_tokenizer;
  spec.chat_template = "{{ \"quotes\" }}\n";
  return Tokenizer::create(spec).value();
}

TEST(TokenizerJson, RoundTripsTheSpec) {
  for (const char* name : {"smollm", "gpt-2", "qwen2"}) {
    const auto before = made_tokenizer(name);
    const auto after = Tokenizer::from_json(before->to_json()).value();
    EXPECT_EQ(after->digest(), before->digest());
    EXPECT_EQ(after->spec().tokens, before->spec().tokens);
    EXPECT_EQ(after->spec().merges, before->spec().merges);
    EXPECT_EQ(after->spec().special, before->spec().special);
    EXPECT_EQ(after->spec().added, before->spec().added);
    EXPECT_EQ(after->spec().pre_tokenizer, name);
    EXPECT_EQ(after->spec().bos, -1);
    EXPECT_EQ(after->spec().eos, 257);
    EXPECT_EQ(after->spec().chat_template, before->spec().chat_template);
    EXPECT_EQ(after->to_json(), before->to_json());
  }
}

class ChangedJson : public testing::Test {
 protected:
  const json original = json::parse(made_tokenizer()->to_json());

  void accepted(const std::function<void(json&)>& change) {
    json changed = original;
    change(changed);
    const auto tokenizer = Tokenizer::from_json(changed.dump());
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.status().to_string();
    EXPECT_EQ((*tokenizer)->digest(), made_tokenizer()->digest());
  }
  void refused(const std::function<void(json&)>& change, const std::string& reason) {
    json changed = original;
    change(changed);
    const auto tokenizer = Tokenizer::from_json(changed.dump());
    EXPECT_EQ(tokenizer.status().code(), StatusCode::kInvalidArgument) << reason;
    EXPECT_THAT(tokenizer.status().message(), AllOf(HasSubstr("tokenizer.json: "), HasSubstr(reason)));
  }
};

TEST_F(ChangedJson, AcceptsTheFormsThatGiveTheSameIds) {
  accepted([](json& j) { j["model"]["merges"][0] = "a b"; });
  accepted([](json& j) { j["model"].erase("flotilla"); });
  accepted([](json& j) { j["model"]["continuing_subword_prefix"] = ""; });
  accepted([](json& j) { j["model"]["unk_token"] = "<|end|>"; });
  accepted([](json& j) { j["model"]["vocab"].erase("<|end|>"), j["model"]["vocab"].erase("<tool>"); });
  accepted([](json& j) { j["post_processor"] = {{"type", "ByteLevel"}, {"trim_offsets", false}}; });
  accepted([](json& j) {
    j["post_processor"] = {{"type", "TemplateProcessing"}, {"single", json::array({{{"Sequence", {{"id", "A"}}}}})}};
  });
}

TEST_F(ChangedJson, RefusesByNameWhatWouldGiveOtherIds) {
  refused([](json& j) { j = 1; }, "tokenizer.json is 1; expected an object");
  refused([](json& j) { j["normalizer"] = {{"type", "NFC"}}; }, "normalizer is {\"type\":\"NFC\"}; expected null");
  refused([](json& j) { j["truncation"] = {{"max_length", 5}}; }, "truncation is");
  refused([](json& j) { j["padding"] = {{"strategy", "Fixed"}}; }, "padding is");
  refused([](json& j) { j["decoder"] = nullptr; }, "decoder is null; expected {\"type\":\"ByteLevel\"}");
  refused([](json& j) { j["pre_tokenizer"] = {{"type", "Whitespace"}}; }, "pre_tokenizer is {\"type\":\"Whitespace\"}");
  refused([](json& j) { j["pre_tokenizer"]["pretokenizers"][0]["individual_digits"] = false; }, "pre_tokenizer is");
  refused([](json& j) { j["pre_tokenizer"]["pretokenizers"].push_back({{"type", "Digits"}}); }, "pre_tokenizer is");
  refused([](json& j) { j["post_processor"] = {{"type", "BertProcessing"}}; }, "post_processor is");
  refused(
      [](json& j) {
        j["post_processor"] = {
            {"type", "TemplateProcessing"},
            {"single", json::array({{{"SpecialToken", {{"id", "<s>"}}}}, {{"Sequence", {{"id", "A"}}}}})}};
      },
      "post_processor is");
  refused([](json& j) { j["model"]["type"] = "Unigram"; }, "model.type is \"Unigram\"; expected \"BPE\"");
  refused([](json& j) { j.erase("model"); }, "model.type is null");
  refused([](json& j) { j["model"]["byte_fallback"] = true; }, "model.byte_fallback is true; expected false");
  refused([](json& j) { j["model"]["ignore_merges"] = true; }, "model.ignore_merges is true");
  refused([](json& j) { j["model"]["continuing_subword_prefix"] = "##"; }, "model.continuing_subword_prefix is");
  refused([](json& j) { j["model"]["end_of_word_suffix"] = "</w>"; }, "model.end_of_word_suffix is");
  refused([](json& j) { j["model"]["dropout"] = 0.1; }, "model.dropout is 0.1");
  refused(
      [](json& j) {
        j["model"]["vocab"].erase("Ā"), j["model"]["vocab"]["new"] = 0, j["model"]["unk_token"] = "<|end|>";
      },
      "model.unk_token is \"<|end|>\"; expected null, as byte 00 has no token");
}

TEST(TokenizerJson, Qwen2WantsItsNormalizerAndTokensThatMatchTheTextBefore) {
  const json original = json::parse(made_tokenizer("qwen2")->to_json());
  const auto refused = [&](const std::function<void(json&)>& change, const std::string& reason) {
    json changed = original;
    change(changed);
    EXPECT_THAT(Tokenizer::from_json(changed.dump()).status().message(), HasSubstr(reason));
  };
  refused([](json& j) { j["normalizer"] = nullptr; }, "normalizer is null; expected {\"type\":\"NFC\"}");
  refused([](json& j) { j["normalizer"]["type"] = "NFKC"; }, "normalizer is {\"type\":\"NFKC\"}");
  refused([](json& j) { j["added_tokens"][0]["normalized"] = true; },
          "added_tokens[0].normalized is true; expected false");
  refused([](json& j) { j["pre_tokenizer"]["pretokenizers"][0]["behavior"] = "Removed"; }, "pre_tokenizer is");
  refused([](json& j) { j["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = "\\s+"; }, "pre_tokenizer is");
  refused([](json& j) { j["pre_tokenizer"]["pretokenizers"][1]["use_regex"] = true; }, "pre_tokenizer is");
}

TEST_F(ChangedJson, RefusesMembersOfAnotherShape) {
  refused([](json& j) { j["model"]["vocab"] = json::array(); }, "model.vocab is []; expected an object");
  refused([](json& j) { j["model"]["vocab"]["a"] = "x"; }, "model.vocab \"a\" is \"x\"; expected a token id");
  refused([](json& j) { j["model"]["vocab"]["a"] = -1; }, "expected a token id");
  refused([](json& j) { j["model"]["vocab"]["a"] = 1.5; }, "expected a token id");
  refused([](json& j) { j["model"]["vocab"]["a"] = 16000000; }, "\"a\" has id 16000000 in a vocabulary of 259");
  refused([](json& j) { j["model"]["vocab"]["a"] = 5; }, "id 5 is both");
  refused([](json& j) { j["model"]["merges"] = "a b"; }, "model.merges is \"a b\"; expected a list of pairs");
  for (const json& merge : {json("ab"), json("a b c"), json(1), json({"a"}), json({"a", 1})}) {
    refused([&](json& j) { j["model"]["merges"][0] = merge; }, "expected two tokens");
  }
  refused([](json& j) { j["model"]["merges"].push_back({"z", "z"}); }, "merge 1: \"zz\" is not in the vocabulary");
  refused([](json& j) { j["added_tokens"] = 3; }, "added_tokens is 3; expected a list");
  refused([](json& j) { j["added_tokens"][0].erase("content"); }, "added_tokens[0].content is null");
  refused([](json& j) { j["added_tokens"][0]["content"] = ""; }, "");
  refused([](json& j) { j["added_tokens"][0]["lstrip"] = true; }, "added_tokens[0].lstrip is true; expected false");
  refused([](json& j) { j["added_tokens"][1].erase("special"); }, "added_tokens[1].special is null");
  refused([](json& j) { j["added_tokens"][1]["id"] = 3; }, "added_tokens[1]: id 3 is both");
  refused([](json& j) { j["added_tokens"][1] = j["added_tokens"][0]; }, "special token 257 is listed twice");
  refused([](json& j) { j["model"]["flotilla"]["eos"] = "x"; }, "model.flotilla.eos is \"x\"");
  refused([](json& j) { j["model"]["flotilla"]["eos"] = 259; }, "eos is token 259");
  refused([](json& j) { j["model"]["flotilla"].erase("chat_template"); }, "model.flotilla.chat_template is null");
}

TEST(TokenizerJson, RefusesWhatIsNotStrictJson) {
  for (const char* text : {"", "{", "nonsense", "{\"a\":1,\"a\":2}", "{\"a\":\"\xff\"}"}) {
    EXPECT_EQ(Tokenizer::from_json(text).status().code(), StatusCode::kDataLoss) << text;
  }
}

TEST(TokenizerJson, EveryPrefixIsAnError) {
  const std::string text = made_tokenizer()->to_json();
  for (std::size_t size = 0; size < text.size(); size += 7) {
    ASSERT_FALSE(Tokenizer::from_json(std::string_view(text).substr(0, size)).ok()) << size;
  }
}

}  // namespace
}  // namespace flotilla
