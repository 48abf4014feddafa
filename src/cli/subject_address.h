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

  // Looks at the file system. invalid_argument for what is none of them.
  static Result<SubjectAddress> parse(const std::string& text);
};

}  // namespace flotilla
