// A random model that is as small as a real tokenizer lets it be, as a folder that `flotilla learn` reads:
//
//   net_model TOKENIZER_OF FOLDER
#include <cmath>
#include <cstdio>

#include "base/philox.h"
#include "model/tokenizer.h"
#include "model/weights.h"

namespace flotilla {
namespace {

Status make(const char* source, const char* folder) {
  FLOTILLA_ASSIGN_OR_RETURN(const Model large, load_model(source));
  ModelDescription sizes;
  sizes.architecture = "llama";
  sizes.layers = 2;
  sizes.hidden = 32;
  sizes.heads = 2;
  sizes.kv_heads = 1;
  sizes.head_dim = 16;
  sizes.ffn = 64;
  sizes.vocabulary = large.tokenizer->vocabulary();
  sizes.context = large.weights.description.context;
  sizes.norm_epsilon = 1e-5f;
  sizes.rope_theta = 10000;
  sizes.tied_embeddings = true;
  FLOTILLA_ASSIGN_OR_RETURN(ModelDescription description, describe_model(sizes));
  ModelWeights weights{std::move(description), {}};
  PhiloxStream random(1, 0);
  for (const TensorSpec& spec : weights.description.tensors) {
    std::vector<float>& tensor = weights.tensors.emplace_back(spec.size());
    const double spread = spec.kind == TensorKind::kMatrix ? 1.5 / std::sqrt(static_cast<double>(spec.cols)) : 0.2;
    const double middle = spec.kind == TensorKind::kMatrix ? 0 : 1;
    for (float& value : tensor) value = static_cast<float>(middle + spread * (2 * random.uniform() - 1));
  }
  return save_model_folder(folder, weights, *large.tokenizer);
}

}  // namespace
}  // namespace flotilla

int main(int count, char** arguments) {
  if (count != 3) {
    std::fprintf(stderr, "usage: net_model TOKENIZER_OF FOLDER\n");
    return 2;
  }
  const flotilla::Status made = flotilla::make(arguments[1], arguments[2]);
  if (!made.ok()) std::fprintf(stderr, "net_model: %s\n", made.to_string().c_str());
  return made.ok() ? 0 : 1;
}
