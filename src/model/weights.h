#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "model/description.h"

namespace flotilla {

class Tokenizer;

// The fp32 weights of a model: tensors[i] holds description.tensors[i], row-major.
struct ModelWeights {
  ModelDescription description;
  std::vector<std::vector<float>> tensors;
};

// What a model file or folder holds.
struct Model {
  ModelWeights weights;
  std::shared_ptr<const Tokenizer> tokenizer;
};

// Reads a GGUF file, or a Hugging Face folder (config.json, model.safetensors, tokenizer.json). Every error names the
// file and the tensor or field. NaN or infinity in a tensor, a missing, surplus or misshapen tensor, and a vocabulary
// that does not fit the embedding are errors.
Result<Model> load_model(const std::filesystem::path& path);

// Writes a Hugging Face folder that load_model and transformers read.
Status save_model_folder(const std::filesystem::path& folder, const ModelWeights& weights, const Tokenizer& tokenizer);

}  // namespace flotilla
