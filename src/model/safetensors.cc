#include "model/safetensors.h"

#include <algorithm>
#include <array>
#include <set>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "model/strict_json.h"

namespace flotilla {
namespace {

using nlohmann::json;

constexpr std::uint64_t kMaxHeaderBytes = 16 << 20;  // some 150,000 tensors
constexpr std::string_view kMetadataKey = "__metadata__";

struct DTypeInfo {
  DType dtype;
  std::string_view name;
  std::int64_t size;
};
// In the order of the enumerators.
constexpr std::array<DTypeInfo, 13> kDTypes = {{{DType::kF64, "F64", 8},
                                                {DType::kF32, "F32", 4},
                                                {DType::kF16, "F16", 2},
                                                {DType::kBF16, "BF16", 2},
                                                {DType::kI64, "I64", 8},
                                                {DType::kI32, "I32", 4},
                                                {DType::kI16, "I16", 2},
                                                {DType::kI8, "I8", 1},
                                                {DType::kU64, "U64", 8},
                                                {DType::kU32, "U32", 4},
                                                {DType::kU16, "U16", 2},
                                                {DType::kU8, "U8", 1},
                                                {DType::kBool, "BOOL", 1}}};

const DTypeInfo& info_of(DType dtype) { return kDTypes[static_cast<std::size_t>(dtype)]; }

// nullopt when a size is negative or the product does not fit 63 bits.
std::optional<std::uint64_t> bytes_of(DType dtype, const TensorShape& shape) {
  std::int64_t bytes = dtype_size(dtype);
  for (const std::int64_t size : shape) {
    if (size < 0 || __builtin_mul_overflow(bytes, size, &bytes)) return std::nullopt;
  }
  return static_cast<std::uint64_t>(bytes);
}

std::optional<std::uint64_t> as_unsigned(const json& value) {
  if (!value.is_number_unsigned()) return std::nullopt;
  return value.get<std::uint64_t>();
}

// Where a tensor's bytes lie in the data.
struct Extent {
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
};

Status parse_entry(const json& entry, TensorView& tensor, Extent& extent) {
  if (!entry.is_object() || entry.size() != 3 || !entry.contains("dtype") || !entry.contains("shape") ||
      !entry.contains("data_offsets")) {
    return data_loss("an entry has dtype, shape and data_offsets, and nothing else");
  }
  const json& dtype = entry["dtype"];
  if (!dtype.is_string()) return data_loss("dtype is not a string");
  const auto known = dtype_from_name(dtype.get_ref<const std::string&>());
  if (!known) return data_loss(fmt::format("unknown dtype {}", dtype.get_ref<const std::string&>()));
  tensor.dtype = *known;

  const json& shape = entry["shape"];
  if (!shape.is_array()) return data_loss("shape is not a list");
  for (const json& size : shape) {
    const auto value = as_unsigned(size);
    if (!value || *value > INT64_MAX) return data_loss("shape holds something other than sizes");
    tensor.shape.push_back(static_cast<std::int64_t>(*value));
  }
  const auto expected = bytes_of(tensor.dtype, tensor.shape);
  if (!expected) return data_loss(fmt::format("shape [{}] overflows", fmt::join(tensor.shape, ", ")));

  const json& offsets = entry["data_offsets"];
  if (!offsets.is_array() || offsets.size() != 2) return data_loss("data_offsets is not a pair");
  const auto begin = as_unsigned(offsets[0]);
  const auto end = as_unsigned(offsets[1]);
  if (!begin || !end || *begin > *end) return data_loss("data_offsets is not a begin and an end");
  if (*end - *begin != *expected) {
    return data_loss(fmt::format("shape [{}] of {} takes {} bytes, data_offsets give {}", fmt::join(tensor.shape, ", "),
                                 dtype_name(tensor.dtype), *expected, *end - *begin));
  }
  extent = {*begin, *end};
  return ok_status();
}

Status parse_metadata(const json& object, SafetensorsMetadata& metadata) {
  if (!object.is_object()) return data_loss("__metadata__ is not an object");
  for (const auto& [key, value] : object.items()) {
    if (!value.is_string()) return data_loss(fmt::format("metadata {} is not a string", key));
    metadata[key] = value.get<std::string>();
  }
  return ok_status();
}

struct Layout {
  std::string header;                       // length, JSON, padding
  std::vector<const TensorToWrite*> order;  // of the data
};

Result<Layout> lay_out(std::span<const TensorToWrite> tensors, const SafetensorsMetadata& metadata) {
  Layout layout;
  for (const TensorToWrite& tensor : tensors) layout.order.push_back(&tensor);
  std::stable_sort(layout.order.begin(), layout.order.end(),
                   [](const auto* a, const auto* b) { return dtype_size(a->dtype) > dtype_size(b->dtype); });

  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  if (!metadata.empty()) header[kMetadataKey] = metadata;
  std::set<std::string_view> names = {kMetadataKey};
  std::uint64_t offset = 0;
  for (const TensorToWrite* tensor : layout.order) {
    if (!names.insert(tensor->name).second) {
      return invalid_argument(fmt::format("tensor name {} is reserved or occurs twice", tensor->name));
    }
    if (bytes_of(tensor->dtype, tensor->shape) != tensor->bytes.size()) {
      return invalid_argument(fmt::format("tensor {}: {} bytes do not fit {} [{}]", tensor->name, tensor->bytes.size(),
                                          dtype_name(tensor->dtype), fmt::join(tensor->shape, ", ")));
    }
    const std::uint64_t end = offset + tensor->bytes.size();
    header[tensor->name] = {
        {"dtype", dtype_name(tensor->dtype)}, {"shape", tensor->shape}, {"data_offsets", {offset, end}}};
    offset = end;
  }
  std::string text;
  try {
    text = header.dump();
  } catch (const json::exception& error) {
    return invalid_argument(fmt::format("safetensors header: {}", error.what()));
  }
  text.resize((text.size() + 7) / 8 * 8, ' ');
  if (text.size() > kMaxHeaderBytes) {
    return invalid_argument(
        fmt::format("a safetensors header of {} bytes; at most {} are allowed", text.size(), kMaxHeaderBytes));
  }
  ByteWriter length;
  length.put(static_cast<std::uint64_t>(text.size()));
  const Bytes length_bytes = std::move(length).take();
  layout.header = std::string(as_text(length_bytes)) + text;
  return layout;
}

}  // namespace

std::string_view dtype_name(DType dtype) { return info_of(dtype).name; }
std::int64_t dtype_size(DType dtype) { return info_of(dtype).size; }

std::optional<DType> dtype_from_name(std::string_view name) {
  for (const DTypeInfo& info : kDTypes) {
    if (info.name == name) return info.dtype;
  }
  return std::nullopt;
}

Result<SafetensorsFile> SafetensorsFile::parse(ByteSpan bytes) {
  ByteReader reader(bytes);
  FLOTILLA_ASSIGN_OR_RETURN(const std::uint64_t header_size, reader.get<std::uint64_t>());
  if (header_size > kMaxHeaderBytes) {
    return data_loss(
        fmt::format("a safetensors header of {} bytes; at most {} are allowed", header_size, kMaxHeaderBytes));
  }
  FLOTILLA_ASSIGN_OR_RETURN(const ByteSpan header_bytes, reader.get_bytes(header_size));
  const ByteSpan data = bytes.subspan(reader.position());
  if (header_bytes.empty() || header_bytes[0] != '{') return data_loss("a safetensors header begins with {");
  FLOTILLA_ASSIGN_OR_RETURN(const json header,
                            parse_strict_json(as_text(header_bytes)).with_context("safetensors header"));

  SafetensorsFile file;
  std::vector<std::pair<Extent, TensorView>> entries;
  for (const auto& [name, entry] : header.items()) {
    if (name == kMetadataKey) {
      FLOTILLA_RETURN_IF_ERROR(parse_metadata(entry, file.metadata_));
      continue;
    }
    auto& [extent, tensor] = entries.emplace_back();
    tensor.name = name;
    FLOTILLA_RETURN_IF_ERROR(parse_entry(entry, tensor, extent).with_context("tensor " + name));
  }
  std::stable_sort(entries.begin(), entries.end(), [](const auto& a, const auto& b) {
    return std::pair(a.first.begin, a.first.end) < std::pair(b.first.begin, b.first.end);
  });

  std::uint64_t covered = 0;
  for (auto& [extent, tensor] : entries) {
    if (extent.begin != covered) {
      return data_loss(
          fmt::format("tensor {} begins at byte {} of the data, expected {}", tensor.name, extent.begin, covered));
    }
    if (extent.end > data.size()) {
      return data_loss(
          fmt::format("tensor {} ends at byte {} of {} bytes of data", tensor.name, extent.end, data.size()));
    }
    covered = extent.end;
    tensor.bytes = data.subspan(extent.begin, extent.end - extent.begin);
    file.index_.emplace(tensor.name, file.tensors_.size());
    file.tensors_.push_back(std::move(tensor));
  }
  if (covered != data.size()) {
    return data_loss(fmt::format("the tensors cover {} of {} bytes of data", covered, data.size()));
  }
  return file;
}

Result<SafetensorsFile> SafetensorsFile::open(const std::filesystem::path& path) {
  FLOTILLA_ASSIGN_OR_RETURN(Bytes bytes, read_settled_file(path));
  auto contents = std::make_shared<const Bytes>(std::move(bytes));
  FLOTILLA_ASSIGN_OR_RETURN(SafetensorsFile file, parse(*contents).with_context(path.string()));
  file.contents_ = std::move(contents);
  return file;
}

const TensorView* SafetensorsFile::find(std::string_view name) const {
  const auto found = index_.find(name);
  return found == index_.end() ? nullptr : &tensors_[found->second];
}

Result<TensorView> SafetensorsFile::expect(std::string_view name, DType dtype, const TensorShape& shape) const {
  const TensorView* tensor = find(name);
  if (tensor == nullptr) return data_loss(fmt::format("tensor {} is missing", name));
  if (tensor->dtype != dtype || tensor->shape != shape) {
    return data_loss(fmt::format("tensor {} is {} [{}], expected {} [{}]", name, dtype_name(tensor->dtype),
                                 fmt::join(tensor->shape, ", "), dtype_name(dtype), fmt::join(shape, ", ")));
  }
  return *tensor;
}

Result<Bytes> write_safetensors(std::span<const TensorToWrite> tensors, const SafetensorsMetadata& metadata) {
  FLOTILLA_ASSIGN_OR_RETURN(const Layout layout, lay_out(tensors, metadata));
  Bytes bytes = to_bytes(layout.header);
  for (const TensorToWrite* tensor : layout.order) {
    bytes.insert(bytes.end(), tensor->bytes.begin(), tensor->bytes.end());
  }
  return bytes;
}

Status write_safetensors_file(const std::filesystem::path& path, std::span<const TensorToWrite> tensors,
                              const SafetensorsMetadata& metadata) {
  FLOTILLA_ASSIGN_OR_RETURN(const Layout layout, lay_out(tensors, metadata));
  std::vector<ByteSpan> pieces = {as_bytes(layout.header)};
  for (const TensorToWrite* tensor : layout.order) pieces.push_back(tensor->bytes);
  return write_file_atomically(path, pieces);
}

}  // namespace flotilla
