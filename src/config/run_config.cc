#include "config/run_config.h"

#include <algorithm>

#include <fmt/format.h>

namespace flotilla {
namespace {

bool is_key_part(std::string_view part) {
  constexpr std::size_t kLongest = 64;  // two of them and the longest key below fit the hub's limit of 512 bytes
  return !part.empty() && part.size() <= kLongest && part != "." && part != ".." &&
         std::all_of(part.begin(), part.end(), [](char c) {
           return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' || c == '_' ||
                  c == '-';
         });
}

Status missing(std::string_view key, std::string_view what) {
  return invalid_argument(fmt::format("{}: expected {}, got nothing; set it in the file or with --{}", key, what, key));
}

}  // namespace

Status check_run_name(std::string_view name) {
  const std::size_t slash = name.find('/');
  if (slash == std::string_view::npos || !is_key_part(name.substr(0, slash)) || !is_key_part(name.substr(slash + 1))) {
    return invalid_argument(
        fmt::format("expected OWNER/RUN, each of 1 to 64 letters, digits, '.', '_' or '-', got {}", quoted_text(name)));
  }
  return ok_status();
}

Status WorkerSection::resolve() const {
  if (!refill || sweep_groups > 0) return ok_status();
  return invalid_argument("worker.refill: expected a number of groups in worker.sweep_groups, which is 0");
}

Status RunConfig::resolve() {
  if (run.name.empty()) return missing("run.name", "OWNER/RUN");
  FLOTILLA_RETURN_IF_ERROR(check_run_name(run.name).with_context("run.name"));
  if (run.hub.empty()) return missing("run.hub", "the hub's folder, bucket or server");
  if (model.source.empty()) return missing("model.source", "a GGUF file or a Hugging Face folder");
  if (run.folder.empty()) run.folder = std::filesystem::path(".flotilla") / run.name;
  if (learner.mode == LearnerMode::kSequential) {
    learner.publish_every = 1;
    learner.max_reuse = 1;
    learner.max_staleness = 0;
  }
  // A MiB is kept for replacements, and all is counted in 64 bits of bytes.
  constexpr std::int64_t kQuotaMax = std::int64_t{1} << 30;
  if (retention.quota_mib == 1 || retention.quota_mib > kQuotaMax) {
    return invalid_argument(fmt::format("retention.quota_mib: expected 0, or 2 and more, at most {}, got {}", kQuotaMax,
                                        retention.quota_mib));
  }
  return worker.resolve();
}

std::string configuration_page() {
  RunConfig config;
  return "# Configuration\n\n"
         "One TOML file describes a run. Every key is optional; a key that is not listed here is an error that names "
         "the\n"
         "nearest one. `flotilla learn` and `flotilla demo` take each of them on the command line too, as\n"
         "`--section.key value` or `--section.key=value`, which wins over the file; `flotilla work` takes those of\n"
         "`[worker]`. Not-a-number and infinity are refused everywhere. The learner writes the configuration that it "
         "uses\n"
         "to `run.toml` in its folder.\n\n"
         "`configs/demo.toml` is a complete example. This page is generated from `src/config/run_config.h`.\n" +
         markdown(schema_of(config));
}

}  // namespace flotilla
