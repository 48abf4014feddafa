#pragma once

#include <string>

#include "base/status.h"
#include "engine/random_model.h"

namespace flotilla {

// A published model's sizes with random weights, or a model file's own weights.
Result<RandomModel> bench_model(const std::string& name);

}  // namespace flotilla
