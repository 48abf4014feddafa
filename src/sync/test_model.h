#pragma once

#include <cstdint>
#include <memory>

#include "base/philox.h"
#include "model/grid.h"
#include "sync/signing.h"

namespace flotilla {

// A small model for the tests of this module: matrices with full, short and single scale groups, and a vector.
ModelDescription test_description();
GridState random_state(const ModelDescription& description, PhiloxStream& random);

struct ChangeRates {
  double integers = 0;  // of matrices, steps of -1 and +1 mostly
  double vectors = 0;   // of integers of vectors
  double scales = 0;    // of groups and vectors that get a new scale
};
GridState changed_state(const ModelDescription& description, const GridState& state, ChangeRates rates,
                        PhiloxStream& random);

std::shared_ptr<const SigningKey> test_key();
std::shared_ptr<const SigningKey> other_key();

}  // namespace flotilla
