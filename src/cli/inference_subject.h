#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "base/ids.h"
#include "base/status.h"
#include "cli/subject_address.h"
#include "engine/engine.h"
#include "model/grid.h"
#include "model/tokenizer.h"

namespace flotilla {

// A model on the grid, to talk to: it needs no environment.
struct InferenceSubject {
  ModelDescription description;
  std::shared_ptr<const GridState> weights;  // none once an engine has them
  std::shared_ptr<const Tokenizer> tokenizer;
  std::string name;                // "SmolLM2-135M-Instruct.Q4_1", or "ada/demo@12"
  std::optional<Version> version;  // of a run
};

Result<InferenceSubject> open_inference_subject(const SubjectAddress& address);

// An engine with the subject's weights and KV for `kv_tokens` positions, or as many as three quarters of the free
// memory hold, or `kv_mib` where that is not 0. threads 0: one a core. resource_exhausted when not even 256 positions
// fit. The engine keeps the weights in a form of its own, so the subject lets go of them.
Result<std::unique_ptr<Engine>> make_inference_engine(InferenceSubject& subject, int threads, std::int64_t kv_tokens,
                                                      std::int64_t kv_mib);

}  // namespace flotilla
