#pragma once

#include <filesystem>
#include <vector>

#include "base/status.h"
#include "model/gguf.h"
#include "model/tokenizer.h"
#include "model/weights.h"

namespace flotilla {

// The two readers behind load_model, and what they share.
Result<Model> load_gguf_model(const std::filesystem::path& path);
Result<Model> load_model_folder(const std::filesystem::path& folder);

// Sizes and architecture from the metadata, blocks and tensors from the architecture. The head is tied to the embedding
// when the file has no tensor for it. invalid_argument names the key.
Result<ModelDescription> description_from_gguf(const GgufFile& file);
// invalid_argument names the key, for a kind of tokenizer that Tokenizer is not.
Result<TokenizerSpec> tokenizer_from_gguf(const GgufFile& file);
// The tensors as the description orders them, the rows of rotated heads back in Hugging Face's order. data_loss names
// the tensor that is missing, surplus, misshapen or not finite.
Result<ModelWeights> weights_from_gguf(const GgufFile& file, ModelDescription description);

// data_loss for NaN and infinity, with the index.
Status check_finite(const std::vector<float>& values);
// invalid_argument unless the embedding has one row for each token and no more than a padding beyond.
Status check_vocabulary(const ModelDescription& description, const Tokenizer& tokenizer);

}  // namespace flotilla
