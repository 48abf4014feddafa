#include "learn/checkpoint.h"

#include <algorithm>
#include <charconv>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/log.h"
#include "model/safetensors.h"

namespace flotilla {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr std::string_view kSuffix = ".safetensors";
constexpr char kProgress[] = "progress";
constexpr char kDigests[] = "xxh3";
constexpr char kModel[] = "model";
constexpr char kReplay[] = "replay";
constexpr char kGroup[] = "group.";
constexpr char kVersion0[] = "version0.";
constexpr char kGrid[] = "grid.";

std::string digest_of(ByteSpan bytes) { return fmt::format("{:016x}", xxh3_64(bytes)); }

json to_json(const LearnerProgress& progress) {
  return {{"format", kCheckpointFormat},
          {"run", progress.run},
          {"warmup_steps", progress.warmup_steps},
          {"steps", progress.steps},
          {"published_steps", progress.published_steps},
          {"optimizer_steps", progress.optimizer_steps},
          {"seconds", progress.seconds},
          {"finished", progress.finished}};
}

Result<LearnerProgress> progress_from_json(const std::string& text) {
  const json object = json::parse(text, nullptr, false);
  if (!object.is_object()) return data_loss("progress is no JSON object");
  const auto format = object.find("format");
  if (format == object.end() || !format->is_number_integer()) return data_loss("progress has no format number");
  if (*format != kCheckpointFormat) {
    return failed_precondition(
        fmt::format("a checkpoint of format {}; this program knows {}", format->dump(), kCheckpointFormat));
  }
  LearnerProgress progress;
  const auto number = [&](const char* name, std::uint64_t& value) {
    const auto found = object.find(name);
    if (found == object.end() || !found->is_number_unsigned()) return false;
    value = found->get<std::uint64_t>();
    return true;
  };
  const auto run = object.find("run"), seconds = object.find("seconds"), finished = object.find("finished");
  if (!number("warmup_steps", progress.warmup_steps) || !number("steps", progress.steps) ||
      !number("published_steps", progress.published_steps) || !number("optimizer_steps", progress.optimizer_steps) ||
      run == object.end() || !run->is_string() || seconds == object.end() || !seconds->is_number() ||
      finished == object.end() || !finished->is_boolean()) {
    return data_loss("progress lacks a field or has one of another type");
  }
  progress.run = run->get<std::string>();
  progress.seconds = seconds->get<double>();
  progress.finished = finished->get<bool>();
  return progress;
}

TensorToWrite floats(std::string name, std::span<const float> values) {
  return {std::move(name), DType::kF32, {static_cast<std::int64_t>(values.size())}, as_bytes(values)};
}

void add_grid(std::vector<TensorToWrite>& out, const std::string& prefix, const ModelDescription& description,
              const GridState& grid) {
  for (std::size_t i = 0; i < description.tensors.size(); ++i) {
    const TensorSpec& spec = description.tensors[i];
    const GridTensor& tensor = grid.tensors[i];
    if (spec.kind == TensorKind::kMatrix) {
      out.push_back({prefix + spec.name, DType::kI8, {spec.rows, spec.cols}, as_bytes(std::span(tensor.q))});
      out.push_back({prefix + spec.name + ".scales",
                     DType::kBF16,
                     {spec.rows, groups_of(spec.cols)},
                     as_bytes(std::span(tensor.scales))});
    } else {
      out.push_back({prefix + spec.name, DType::kI16, {spec.size()}, as_bytes(std::span(tensor.vector_q))});
      out.push_back(floats(prefix + spec.name + ".scale", {&tensor.vector_scale, 1}));
    }
  }
}

Result<std::shared_ptr<const GridState>> read_grid(const SafetensorsFile& file, const std::string& prefix,
                                                   const ModelDescription& description) {
  GridState grid;
  for (const TensorSpec& spec : description.tensors) {
    GridTensor& tensor = grid.tensors.emplace_back();
    if (spec.kind == TensorKind::kMatrix) {
      FLOTILLA_ASSIGN_OR_RETURN(const TensorView q,
                                file.expect(prefix + spec.name, DType::kI8, {spec.rows, spec.cols}));
      FLOTILLA_ASSIGN_OR_RETURN(const TensorView scales, file.expect(prefix + spec.name + ".scales", DType::kBF16,
                                                                     {spec.rows, groups_of(spec.cols)}));
      tensor.q = q.copy<std::int8_t>();
      tensor.scales = scales.copy<std::uint16_t>();
    } else {
      FLOTILLA_ASSIGN_OR_RETURN(const TensorView q, file.expect(prefix + spec.name, DType::kI16, {spec.size()}));
      FLOTILLA_ASSIGN_OR_RETURN(const TensorView scale, file.expect(prefix + spec.name + ".scale", DType::kF32, {1}));
      tensor.vector_q = q.copy<std::int16_t>();
      tensor.vector_scale = scale.copy<float>().front();
    }
  }
  FLOTILLA_RETURN_IF_ERROR(check_grid(description, grid));
  return std::make_shared<const GridState>(std::move(grid));
}

Result<std::string> metadata(const SafetensorsFile& file, const char* name) {
  const auto found = file.metadata().find(name);
  if (found == file.metadata().end()) return data_loss(fmt::format("metadata \"{}\" is missing", name));
  return found->second;
}

// Every tensor and the progress have the digest that the metadata states.
Status check_digests(const SafetensorsFile& file) {
  FLOTILLA_ASSIGN_OR_RETURN(const std::string text, metadata(file, kDigests));
  FLOTILLA_ASSIGN_OR_RETURN(const std::string progress, metadata(file, kProgress));
  const json digests = json::parse(text, nullptr, false);
  if (!digests.is_object() || digests.size() != file.tensors().size() + 1) return data_loss("digests are incomplete");
  const auto check = [&](const std::string& name, ByteSpan bytes) {
    const auto found = digests.find(name);
    if (found != digests.end() && *found == digest_of(bytes)) return ok_status();
    return data_loss(fmt::format("{} does not have the digest that was written", name));
  };
  FLOTILLA_RETURN_IF_ERROR(check(kProgress, as_bytes(progress)));
  for (const TensorView& tensor : file.tensors()) FLOTILLA_RETURN_IF_ERROR(check(tensor.name, tensor.bytes));
  return ok_status();
}

}  // namespace

fs::path CheckpointFolder::path(std::uint64_t number) const {
  return folder_ / (padded(number) + std::string(kSuffix));
}

Result<std::vector<std::uint64_t>> CheckpointFolder::list() const {
  std::vector<std::uint64_t> numbers;
  std::error_code error;
  for (fs::directory_iterator it(folder_, error), end; !error && it != end; it.increment(error)) {
    const std::string name = it->path().filename().string();
    std::uint64_t number = 0;
    const auto [rest, problem] = std::from_chars(name.data(), name.data() + name.size(), number);
    if (problem == std::errc() && name == padded(number) + std::string(kSuffix)) numbers.push_back(number);
  }
  if (error && error != std::errc::no_such_file_or_directory) {
    return errno_status(error.value(), "list checkpoints in " + folder_.string());
  }
  std::sort(numbers.begin(), numbers.end());
  return numbers;
}

Result<LearnerMemory> CheckpointFolder::load(std::uint64_t number, const std::string& run, TrainerState trainer) const {
  return read(path(number), run, trainer).with_context(path(number).string());
}

Result<std::vector<std::uint64_t>> CheckpointFolder::set_aside_from(std::uint64_t number) {
  FLOTILLA_ASSIGN_OR_RETURN(std::vector<std::uint64_t> numbers, list());
  numbers.erase(numbers.begin(), std::ranges::lower_bound(numbers, number));
  for (auto it = numbers.rbegin(); it != numbers.rend(); ++it) {
    std::error_code error;
    fs::rename(path(*it), path(*it).string() + ".abandoned", error);
    if (error) return errno_status(error.value(), "set aside " + path(*it).string());
  }
  return numbers;
}

Result<std::uint64_t> CheckpointFolder::save(const LearnerMemory& memory, const TrainerState& trainer) {
  std::vector<TensorToWrite> tensors;
  for (std::size_t i = 0; i < description_.tensors.size(); ++i) {
    const std::string& name = description_.tensors[i].name;
    tensors.push_back(floats("master." + name, trainer.masters[i]));
    tensors.push_back(floats("mean." + name, trainer.mean[i]));
    tensors.push_back(floats("mean_square." + name, trainer.mean_square[i]));
  }
  if (memory.version0) add_grid(tensors, kVersion0, description_, *memory.version0);
  if (memory.grid) add_grid(tensors, kGrid, description_, *memory.grid);
  const auto blob = [&](const std::string& name, ByteSpan bytes) {
    tensors.push_back({name, DType::kU8, {static_cast<std::int64_t>(bytes.size())}, bytes});
  };
  blob(kReplay, memory.replay);
  for (const auto& [id, file] : memory.groups) blob(kGroup + id, file);

  const std::string progress = to_json(memory.progress).dump();
  json digests{{kProgress, digest_of(as_bytes(progress))}};
  for (const TensorToWrite& tensor : tensors) digests[tensor.name] = digest_of(tensor.bytes);
  const std::uint64_t number = memory.progress.warmup_steps + memory.progress.steps;
  FLOTILLA_RETURN_IF_ERROR(write_safetensors_file(
      path(number), tensors,
      {{kProgress, progress}, {kDigests, digests.dump()}, {kModel, description_.to_config_json()}}));
  FLOTILLA_ASSIGN_OR_RETURN(const auto numbers, list());
  for (std::int64_t i = 0; i + keep_ < std::ssize(numbers); ++i) {
    std::error_code ignored;  // it is tried again after the next checkpoint
    fs::remove(path(numbers[i]), ignored);
  }
  std::error_code error;
  const std::uintmax_t bytes = fs::file_size(path(number), error);
  return error ? 0 : bytes;
}

Result<LearnerMemory> CheckpointFolder::read(const fs::path& path, const std::string& run,
                                             TrainerState& trainer) const {
  FLOTILLA_ASSIGN_OR_RETURN(const SafetensorsFile file, SafetensorsFile::open(path));
  FLOTILLA_RETURN_IF_ERROR(check_digests(file));
  LearnerMemory memory;
  FLOTILLA_ASSIGN_OR_RETURN(const std::string progress, metadata(file, kProgress));
  FLOTILLA_ASSIGN_OR_RETURN(memory.progress, progress_from_json(progress));
  if (memory.progress.run != run) {
    return failed_precondition(fmt::format("a checkpoint of run {}, this is {}", memory.progress.run, run));
  }
  FLOTILLA_ASSIGN_OR_RETURN(const std::string model, metadata(file, kModel));
  if (model != description_.to_config_json()) return failed_precondition("a checkpoint of another model");
  if (file.find(kVersion0 + description_.tensors.front().name)) {
    FLOTILLA_ASSIGN_OR_RETURN(memory.version0, read_grid(file, kVersion0, description_));
    FLOTILLA_ASSIGN_OR_RETURN(memory.grid, read_grid(file, kGrid, description_));
  }
  const TensorView* replay = file.find(kReplay);
  if (!replay) return data_loss("the replay buffer is missing");
  memory.replay.assign(replay->bytes.begin(), replay->bytes.end());
  const std::string group_prefix = kGroup;
  for (const TensorView& tensor : file.tensors()) {
    if (!tensor.name.starts_with(group_prefix)) continue;
    memory.groups.emplace(tensor.name.substr(group_prefix.size()), Bytes(tensor.bytes.begin(), tensor.bytes.end()));
  }
  // All views first, so that the trainer is filled whole or not at all.
  std::vector<std::pair<TensorView, std::span<float>>> copies;
  for (std::size_t i = 0; i < description_.tensors.size(); ++i) {
    const TensorSpec& spec = description_.tensors[i];
    const auto expect = [&](const std::string& prefix, std::span<float> target) -> Status {
      FLOTILLA_ASSIGN_OR_RETURN(TensorView view, file.expect(prefix + spec.name, DType::kF32, {spec.size()}));
      copies.emplace_back(std::move(view), target);
      return ok_status();
    };
    FLOTILLA_RETURN_IF_ERROR(expect("master.", trainer.masters[i]));
    FLOTILLA_RETURN_IF_ERROR(expect("mean.", trainer.mean[i]));
    FLOTILLA_RETURN_IF_ERROR(expect("mean_square.", trainer.mean_square[i]));
  }
  for (const auto& [view, target] : copies) std::memcpy(target.data(), view.bytes.data(), view.bytes.size());
  return memory;
}

Result<std::optional<LearnerMemory>> CheckpointFolder::load(const std::string& run, TrainerState trainer) const {
  FLOTILLA_ASSIGN_OR_RETURN(const auto numbers, list());
  for (auto number = numbers.rbegin(); number != numbers.rend(); ++number) {
    Result<LearnerMemory> memory = read(path(*number), run, trainer);
    if (memory.ok()) return std::optional(*std::move(memory));
    const Status problem = memory.status().with_context(path(*number).string());
    if (problem.code() == StatusCode::kFailedPrecondition) return problem;
    log_warning("learn", "checkpoint skipped: {}", problem.to_string());
  }
  if (numbers.empty()) return std::optional<LearnerMemory>();
  return data_loss(fmt::format("none of the {} checkpoints in {} is whole; move them away to begin again",
                               numbers.size(), folder_.string()));
}

}  // namespace flotilla
