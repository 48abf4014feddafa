#include "model/gguf.h"

#include <algorithm>
#include <bit>
#include <set>

#include <fmt/format.h>

#include "model/gguf_blocks.h"
#include "model/tokenizer_utf8.h"

namespace flotilla {
namespace {

constexpr std::uint32_t kMagic = 0x46554747;  // "GGUF"
constexpr std::uint64_t kDefaultAlignment = 32;
constexpr std::uint64_t kMaxAlignment = 1 << 20;
constexpr std::uint64_t kMaxKeyBytes = 65535;  // this and the next two: the specification
constexpr std::uint64_t kMaxTensorNameBytes = 64;
constexpr std::uint32_t kMaxDimensions = 4;
constexpr std::uint64_t kMaxElements = std::uint64_t{1} << 48;
// The shortest entries there can be: they bound a count by the bytes that are left.
constexpr std::uint64_t kMinEntryBytes = 8 + 4 + 1;
constexpr std::uint64_t kMinTensorBytes = 8 + 4 + 8 + 4 + 8;

// Numbers of the types of metadata values.
enum ValueType : std::uint32_t { kU8, kI8, kU16, kI16, kU32, kI32, kF32, kBool, kString, kArray, kU64, kI64, kF64 };

std::uint64_t align_up(std::uint64_t value, std::uint64_t alignment) {
  return (value + alignment - 1) & ~(alignment - 1);
}

}  // namespace

class GgufParser {
 public:
  explicit GgufParser(ByteSpan bytes) : bytes_(bytes), reader_(bytes) {}

  Result<GgufFile> parse() {
    FLOTILLA_RETURN_IF_ERROR(parse_version());
    FLOTILLA_ASSIGN_OR_RETURN(const auto tensor_count, reader_.get<std::uint64_t>());
    FLOTILLA_ASSIGN_OR_RETURN(const auto entry_count, reader_.get<std::uint64_t>());
    if (entry_count > reader_.remaining() / kMinEntryBytes) {
      return data_loss(fmt::format("{} metadata entries in {} bytes", entry_count, reader_.remaining()));
    }
    for (std::uint64_t i = 0; i < entry_count; ++i) {
      FLOTILLA_RETURN_IF_ERROR(parse_entry().with_context(fmt::format("metadata entry {}", i)));
    }
    FLOTILLA_RETURN_IF_ERROR(find_alignment());
    if (tensor_count > reader_.remaining() / kMinTensorBytes) {
      return data_loss(fmt::format("{} tensors in {} bytes", tensor_count, reader_.remaining()));
    }
    for (std::uint64_t i = 0; i < tensor_count; ++i) {
      FLOTILLA_RETURN_IF_ERROR(parse_tensor().with_context(fmt::format("tensor {}", i)));
    }
    FLOTILLA_RETURN_IF_ERROR(place_tensors());
    return std::move(file_);
  }

 private:
  Status parse_version() {
    FLOTILLA_ASSIGN_OR_RETURN(const auto magic, reader_.get<std::uint32_t>());
    if (magic != kMagic) return data_loss("not a GGUF file: it does not begin with GGUF");
    FLOTILLA_ASSIGN_OR_RETURN(const auto version, reader_.get<std::uint32_t>());
    if (version == 2 || version == 3) return ok_status();
    const bool swapped = (version & 0xffff) == 0;
    return invalid_argument(fmt::format("GGUF version {}, expected 2 or 3{}", version,
                                        swapped ? " (a big-endian file cannot be read)" : ""));
  }

  Result<std::string_view> parse_string() {
    FLOTILLA_ASSIGN_OR_RETURN(const auto size, reader_.get<std::uint64_t>());
    FLOTILLA_ASSIGN_OR_RETURN(const ByteSpan bytes, reader_.get_bytes(size));
    if (utf8_valid_prefix(as_text(bytes)) != bytes.size()) return data_loss("a string is not UTF-8");
    return as_text(bytes);
  }

  template <typename Stored, typename Wide>
  Result<GgufValue> parse_number() {
    FLOTILLA_ASSIGN_OR_RETURN(const auto value, reader_.get<Stored>());
    return GgufValue(static_cast<Wide>(value));
  }

  Result<GgufValue> parse_bool() {
    FLOTILLA_ASSIGN_OR_RETURN(const auto value, reader_.get<std::uint8_t>());
    if (value > 1) return data_loss(fmt::format("a boolean of {}", value));
    return GgufValue(value == 1);
  }

  Result<GgufValue> parse_value(std::uint32_t type) {
    switch (type) {
      case kU8: return parse_number<std::uint8_t, std::uint64_t>();
      case kI8: return parse_number<std::int8_t, std::int64_t>();
      case kU16: return parse_number<std::uint16_t, std::uint64_t>();
      case kI16: return parse_number<std::int16_t, std::int64_t>();
      case kU32: return parse_number<std::uint32_t, std::uint64_t>();
      case kI32: return parse_number<std::int32_t, std::int64_t>();
      case kF32: return parse_number<float, double>();
      case kU64: return parse_number<std::uint64_t, std::uint64_t>();
      case kI64: return parse_number<std::int64_t, std::int64_t>();
      case kF64: return parse_number<double, double>();
      case kBool: return parse_bool();
      case kArray: return parse_array();
      case kString: {
        FLOTILLA_ASSIGN_OR_RETURN(const std::string_view text, parse_string());
        return GgufValue(text);
      }
      default: return data_loss(fmt::format("unknown type {}", type));
    }
  }

  template <typename Stored, typename Wide>
  Result<GgufValue> parse_numbers(std::uint64_t count) {
    if (count > reader_.remaining() / sizeof(Stored)) {
      return data_loss(fmt::format("an array of {} elements in {} bytes", count, reader_.remaining()));
    }
    std::vector<Wide> values;
    values.reserve(count);
    for (std::uint64_t i = 0; i < count; ++i) {
      FLOTILLA_ASSIGN_OR_RETURN(const auto value, reader_.get<Stored>());
      values.push_back(static_cast<Wide>(value));
    }
    return GgufValue(std::move(values));
  }

  Result<GgufValue> parse_strings(std::uint64_t count) {
    if (count > reader_.remaining() / sizeof(std::uint64_t)) {
      return data_loss(fmt::format("an array of {} strings in {} bytes", count, reader_.remaining()));
    }
    std::vector<std::string_view> values;
    values.reserve(count);
    for (std::uint64_t i = 0; i < count; ++i) {
      FLOTILLA_ASSIGN_OR_RETURN(const std::string_view value, parse_string());
      values.push_back(value);
    }
    return GgufValue(std::move(values));
  }

  Result<GgufValue> parse_array() {
    FLOTILLA_ASSIGN_OR_RETURN(const auto type, reader_.get<std::uint32_t>());
    FLOTILLA_ASSIGN_OR_RETURN(const auto count, reader_.get<std::uint64_t>());
    switch (type) {
      case kU8:
      case kBool: return parse_numbers<std::uint8_t, std::int64_t>(count);
      case kI8: return parse_numbers<std::int8_t, std::int64_t>(count);
      case kU16: return parse_numbers<std::uint16_t, std::int64_t>(count);
      case kI16: return parse_numbers<std::int16_t, std::int64_t>(count);
      case kU32: return parse_numbers<std::uint32_t, std::int64_t>(count);
      case kI32: return parse_numbers<std::int32_t, std::int64_t>(count);
      case kU64:
      case kI64: return parse_numbers<std::int64_t, std::int64_t>(count);
      case kF32: return parse_numbers<float, double>(count);
      case kF64: return parse_numbers<double, double>(count);
      case kString: return parse_strings(count);
      case kArray: return invalid_argument("an array of arrays cannot be read");
      default: return data_loss(fmt::format("unknown type {} of an array", type));
    }
  }

  Status parse_entry() {
    FLOTILLA_ASSIGN_OR_RETURN(const std::string_view key, parse_string());
    if (key.empty() || key.size() > kMaxKeyBytes) return data_loss(fmt::format("a key of {} bytes", key.size()));
    FLOTILLA_ASSIGN_OR_RETURN(const auto type, reader_.get<std::uint32_t>());
    FLOTILLA_ASSIGN_OR_RETURN(GgufValue value, parse_value(type).with_context(key));
    if (!file_.metadata_.emplace(key, std::move(value)).second) return data_loss(fmt::format("{} occurs twice", key));
    return ok_status();
  }

  Status find_alignment() {
    const auto found = file_.metadata_.find("general.alignment");
    if (found == file_.metadata_.end()) return ok_status();
    const auto* value = std::get_if<std::uint64_t>(&found->second);
    if (value == nullptr || !std::has_single_bit(*value) || *value > kMaxAlignment) {
      return data_loss(fmt::format("general.alignment is not a power of two up to {}", kMaxAlignment));
    }
    alignment_ = *value;
    return ok_status();
  }

  // The sizes of the tensor; its bytes are found when all offsets are known.
  Status parse_tensor() {
    GgufTensor tensor;
    FLOTILLA_ASSIGN_OR_RETURN(tensor.name, parse_string());
    if (tensor.name.empty() || tensor.name.size() > kMaxTensorNameBytes) {
      return data_loss(fmt::format("a name of {} bytes", tensor.name.size()));
    }
    if (!names_.insert(tensor.name).second) return data_loss(fmt::format("{} occurs twice", tensor.name));
    return parse_layout(tensor).with_context(tensor.name);
  }

  Status parse_layout(GgufTensor& tensor) {
    FLOTILLA_ASSIGN_OR_RETURN(const auto dimensions, reader_.get<std::uint32_t>());
    if (dimensions == 0 || dimensions > kMaxDimensions) return data_loss(fmt::format("{} dimensions", dimensions));
    tensor.dimensions = static_cast<int>(dimensions);
    std::uint64_t elements = 1;
    for (std::uint32_t i = 0; i < dimensions; ++i) {
      FLOTILLA_ASSIGN_OR_RETURN(const auto size, reader_.get<std::uint64_t>());
      if (size == 0) return data_loss("a dimension of 0");
      if (size > kMaxElements / elements) return data_loss("the shape overflows");
      elements *= size;
      if (i == 0) tensor.cols = static_cast<std::int64_t>(size);
    }
    tensor.rows = static_cast<std::int64_t>(elements) / tensor.cols;

    FLOTILLA_ASSIGN_OR_RETURN(const auto type, reader_.get<std::uint32_t>());
    const GgufBlock* block = find_gguf_block(type);
    if (block == nullptr) {
      return invalid_argument(fmt::format("element type {} cannot be read; known: {}", type, known_gguf_types()));
    }
    tensor.type = block->type;
    if (tensor.cols % block->elements != 0) {
      return data_loss(fmt::format("rows of {} elements, expected a multiple of {}", tensor.cols, block->elements));
    }
    FLOTILLA_ASSIGN_OR_RETURN(const auto offset, reader_.get<std::uint64_t>());
    extents_.push_back({offset, elements / block->elements * block->bytes, file_.tensors_.size()});
    file_.tensors_.push_back(tensor);
    return ok_status();
  }

  Status place_tensors() {
    const std::uint64_t data_begin = align_up(reader_.position(), alignment_);
    if (data_begin > bytes_.size()) {
      if (extents_.empty()) return ok_status();
      return data_loss("the file ends before the data of its tensors");
    }
    const ByteSpan data = bytes_.subspan(data_begin);
    std::sort(extents_.begin(), extents_.end(), [](const Extent& a, const Extent& b) { return a.begin < b.begin; });
    std::uint64_t expected = 0;
    std::uint64_t end = 0;
    for (const Extent& extent : extents_) {
      GgufTensor& tensor = file_.tensors_[extent.tensor];
      if (extent.begin != expected) {
        return data_loss(
            fmt::format("{} begins at byte {} of the data, expected {}", tensor.name, extent.begin, expected));
      }
      if (extent.size > data.size() - extent.begin) {
        return data_loss(fmt::format("{} takes {} bytes from byte {} of {} bytes of data", tensor.name, extent.size,
                                     extent.begin, data.size()));
      }
      tensor.bytes = data.subspan(extent.begin, extent.size);
      end = extent.begin + extent.size;
      expected = align_up(end, alignment_);
      if (expected > data.size() && &extent != &extents_.back()) return data_loss("the file ends within its tensors");
    }
    if (data.size() > expected) {
      return data_loss(fmt::format("{} bytes follow the last tensor", data.size() - end));
    }
    return ok_status();
  }

  struct Extent {
    std::uint64_t begin;
    std::uint64_t size;
    std::size_t tensor;
  };

  ByteSpan bytes_;
  ByteReader reader_;
  GgufFile file_;
  std::uint64_t alignment_ = kDefaultAlignment;
  std::set<std::string_view> names_;
  std::vector<Extent> extents_;
};

Result<GgufFile> GgufFile::parse(ByteSpan bytes) { return GgufParser(bytes).parse(); }

Result<GgufFile> GgufFile::open(const std::filesystem::path& path) {
  FLOTILLA_ASSIGN_OR_RETURN(Bytes bytes, read_settled_file(path));
  auto contents = std::make_shared<const Bytes>(std::move(bytes));
  FLOTILLA_ASSIGN_OR_RETURN(GgufFile file, parse(*contents).with_context(path.string()));
  file.contents_ = std::move(contents);
  return file;
}

}  // namespace flotilla
