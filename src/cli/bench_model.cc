#include "cli/bench_model.h"

#include <fmt/format.h>

#include "model/published_sizes.h"
#include "model/weights.h"

namespace flotilla {

Result<RandomModel> bench_model(const std::string& name) {
  std::string known;
  for (const PublishedSizes& published : kPublishedSizes) {
    if (name == published.name) return random_model(published.sizes(), 1);
    known += fmt::format("{}{}", known.empty() ? "" : ", ", published.name);
  }
  FLOTILLA_ASSIGN_OR_RETURN(const Model model, load_model(name).with_context(fmt::format(
                                                   "--model {} is none of {} and no model file", name, known)));
  FLOTILLA_ASSIGN_OR_RETURN(GridState state, make_grid(model.weights));
  return RandomModel{model.weights.description, std::move(state)};
}

}  // namespace flotilla
