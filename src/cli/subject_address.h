#pragma once

#include <optional>
#include <string>

#include "base/ids.h"
#include "base/status.h"
#include "cli/run_address.h"

namespace flotilla {

// A model as people name it: a .gguf file, a Hugging Face folder, a run, or one version of a run
// (HUB/OWNER/RUN@VERSION).
struct SubjectAddress {
  std::string model;  // file or folder; empty: a run
  RunAddress run;
  std::optional<Version> version;  // none: the newest

  // Looks at the file system. not_found for what may be a path and leads to nothing, invalid_argument for other text.
  static Result<SubjectAddress> parse(const std::string& text);
};

}  // namespace flotilla
