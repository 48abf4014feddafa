#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <filesystem>
#include <memory>
#include <string>

#include "cli/commands.h"
#include "model/tokenizer.h"
#include "model/weights.h"

namespace flotilla {
namespace {

struct ImportOptions {
  std::string source;
  std::string target;
};

Status import_model(const ImportOptions& options) {
  if (std::filesystem::exists(options.target) && !std::filesystem::is_empty(options.target)) {
    return invalid_argument(fmt::format("{} exists and is not empty; name a new folder", options.target));
  }
  FLOTILLA_ASSIGN_OR_RETURN(const Model model, load_model(options.source));
  FLOTILLA_RETURN_IF_ERROR(save_model_folder(options.target, model.weights, *model.tokenizer));
  const ModelDescription& description = model.weights.description;
  fmt::print("{}: {} with {:.1f} million parameters, {} layers, {} tokens\n", options.target, description.architecture,
             static_cast<double>(description.parameters()) / 1e6, description.layers, description.vocabulary);
  return ok_status();
}

}  // namespace

void add_model_command(CLI::App& app, Action& action) {
  CLI::App* command = app.add_subcommand("model", "Work with model files");
  command->require_subcommand(1);
  command->footer("Example:\n  flotilla model import SmolLM2-135M-Instruct.Q4_1.gguf smollm2");
  CLI::App* import =
      command->add_subcommand("import", "Turn a GGUF file or a Hugging Face folder into a Hugging Face folder");
  auto options = std::make_shared<ImportOptions>();
  import
      ->add_option("SOURCE", options->source,
                   "A .gguf file, or a folder with config.json, model.safetensors, tokenizer.json")
      ->required();
  import->add_option("TARGET", options->target, "The folder to write")->required();
  import->footer("Example:\n  flotilla model import SmolLM2-135M-Instruct.Q4_1.gguf smollm2");
  import->callback([&action, options] { action = [options] { return import_model(*options); }; });
}

}  // namespace flotilla
