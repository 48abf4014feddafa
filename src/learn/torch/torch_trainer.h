#pragma once

#include <memory>

#include "learn/trainer.h"

namespace flotilla {

// The trainer on libtorch, on this machine's CPU. Memory: four times the weights in fp32 (masters, gradient, AdamW's
// two means), once more for the grid forward, once more for the KL term, and about 6 floats a layer, token and unit of
// width for each token of a micro-batch. resource_exhausted when the buffers cannot be had.
Result<std::unique_ptr<Trainer>> make_torch_trainer(const ModelDescription& description, const TrainerOptions& options);

}  // namespace flotilla
