#include "sync/anchor.h"

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "model/safetensors.h"
#include "sync/signed_json.h"

namespace flotilla {
namespace {

constexpr const char* kFormatField = "anchor_format";

constexpr const char* kHistoryCounts = "flotilla.history.counts";
constexpr const char* kHistory = "flotilla.history";

SafetensorsMetadata metadata_of(const AnchorLabel& label, int format) {
  return {{kFormatField, std::to_string(format)},
          {"run", label.run},
          {"version", std::to_string(label.version.value())},
          {"state", label.state.to_hex()}};
}

// The format of a file whose label is the expected one.
Result<int> check_label(const SafetensorsFile& file, const AnchorLabel& expected) {
  const auto format = file.metadata().find(kFormatField);
  if (format == file.metadata().end()) return data_loss(fmt::format("the metadata has no {}", kFormatField));
  for (int known = 1; known <= kAnchorFormat; ++known) {
    if (format->second != std::to_string(known)) continue;
    const SafetensorsMetadata metadata = metadata_of(expected, known);
    if (file.metadata().size() != metadata.size()) {
      return data_loss(fmt::format("{} metadata; expected {}", file.metadata().size(), metadata.size()));
    }
    for (const auto& [name, value] : metadata) {
      const auto found = file.metadata().find(name);
      const std::string observed = found == file.metadata().end() ? "missing" : found->second;
      if (observed != value) return data_loss(fmt::format("{} is {}; expected {}", name, observed, value));
    }
    return known;
  }
  return upgrade_needed(kFormatField, format->second, kAnchorFormat);
}

// Integers and scales of each tensor, in the bytes.
using TensorViews = std::vector<std::pair<TensorView, TensorView>>;

Result<TensorViews> find_tensors(const ModelDescription& description, const SafetensorsFile& file) {
  TensorViews views;
  for (const TensorSpec& spec : description.tensors) {
    const bool matrix = spec.kind == TensorKind::kMatrix;
    FLOTILLA_ASSIGN_OR_RETURN(TensorView q, matrix ? file.expect(spec.name, DType::kI8, {spec.rows, spec.cols})
                                                   : file.expect(spec.name, DType::kI16, {spec.cols}));
    FLOTILLA_ASSIGN_OR_RETURN(
        TensorView scales, matrix ? file.expect(spec.name + ".scales", DType::kU16, {spec.rows, groups_of(spec.cols)})
                                  : file.expect(spec.name + ".scale", DType::kF32, {1}));
    views.emplace_back(std::move(q), std::move(scales));
  }
  return views;
}

// Of format 2; before there was none.
Result<DeltaHistory> read_history(const ModelDescription& description, const SafetensorsFile& file) {
  DeltaHistory history = no_history(description);
  FLOTILLA_ASSIGN_OR_RETURN(const TensorView counts_view,
                            file.expect(kHistoryCounts, DType::kU32, {std::ssize(history)}));
  const auto counts = counts_view.copy<std::uint32_t>();
  std::int64_t total = 0;
  for (const std::uint32_t count : counts) total += count;
  FLOTILLA_ASSIGN_OR_RETURN(const TensorView entries, file.expect(kHistory, DType::kU32, {total}));
  ByteReader reader(entries.bytes);
  for (std::size_t region = 0; region < history.size(); ++region) {
    history[region].reserve(counts[region]);
    for (std::uint32_t i = 0; i < counts[region]; ++i) {
      history[region].push_back(PastChange::of_bits(reader.get<std::uint32_t>().value()));
    }
  }
  FLOTILLA_RETURN_IF_ERROR(check_history(description, history));
  return history;
}

Result<std::pair<TensorViews, DeltaHistory>> read_content(const ModelDescription& description, ByteSpan bytes,
                                                          const AnchorLabel& expected) {
  FLOTILLA_ASSIGN_OR_RETURN(const SafetensorsFile file, SafetensorsFile::parse(bytes));
  FLOTILLA_ASSIGN_OR_RETURN(const int format, check_label(file, expected));
  const std::size_t wanted = 2 * description.tensors.size() + (format > 1 ? 2 : 0);
  if (file.tensors().size() != wanted) {
    return data_loss(fmt::format("{} tensors; expected {}", file.tensors().size(), wanted));
  }
  FLOTILLA_ASSIGN_OR_RETURN(TensorViews views, find_tensors(description, file));
  DeltaHistory history = no_history(description);
  if (format > 1) {
    FLOTILLA_ASSIGN_OR_RETURN(history, read_history(description, file));
  }
  return std::pair(std::move(views), std::move(history));
}

GridTensor tensor_of(const std::pair<TensorView, TensorView>& views) {
  const auto& [q, scales] = views;
  GridTensor tensor;
  if (q.dtype == DType::kI8) {
    tensor.q = q.copy<std::int8_t>();
    tensor.scales = scales.copy<std::uint16_t>();
  } else {
    tensor.vector_q = q.copy<std::int16_t>();
    tensor.vector_scale = scales.copy<float>()[0];
  }
  return tensor;
}

}  // namespace

Result<Bytes> encode_anchor(const ModelDescription& description, const GridState& state, const DeltaHistory& history,
                            const AnchorLabel& label) {
  FLOTILLA_RETURN_IF_ERROR(check_grid(description, state).with_context("encode an anchor"));
  FLOTILLA_RETURN_IF_ERROR(check_history(description, history).with_context("encode an anchor"));
  std::vector<TensorToWrite> tensors;
  for (std::size_t i = 0; i < description.tensors.size(); ++i) {
    const TensorSpec& spec = description.tensors[i];
    const GridTensor& tensor = state.tensors[i];
    if (spec.kind == TensorKind::kMatrix) {
      tensors.push_back({spec.name, DType::kI8, {spec.rows, spec.cols}, as_bytes(std::span(tensor.q))});
      tensors.push_back(
          {spec.name + ".scales", DType::kU16, {spec.rows, groups_of(spec.cols)}, as_bytes(std::span(tensor.scales))});
    } else {
      tensors.push_back({spec.name, DType::kI16, {spec.cols}, as_bytes(std::span(tensor.vector_q))});
      tensors.push_back(
          {spec.name + ".scale", DType::kF32, {1}, as_bytes(std::span<const float>(&tensor.vector_scale, 1))});
    }
  }
  std::vector<std::uint32_t> counts, bits;
  for (const ChangeHistory& region : history) {
    counts.push_back(static_cast<std::uint32_t>(region.size()));
    for (const PastChange& past : region) bits.push_back(past.bits());
  }
  tensors.push_back(
      {kHistoryCounts, DType::kU32, {std::ssize(counts)}, as_bytes(std::span<const std::uint32_t>(counts))});
  tensors.push_back({kHistory, DType::kU32, {std::ssize(bits)}, as_bytes(std::span<const std::uint32_t>(bits))});
  return write_safetensors(tensors, metadata_of(label, kAnchorFormat)).with_context("encode an anchor");
}

Result<OpenAnchor> open_anchor(const ModelDescription& description, Bytes bytes, const AnchorLabel& expected) {
  const auto kept = std::make_shared<Bytes>(std::move(bytes));
  auto found = read_content(description, *kept, expected);
  if (!found.ok()) return std::move(found).with_context("anchor").status();
  const auto views = std::make_shared<const TensorViews>(std::move(found->first));
  const auto read = [kept, views](TensorIndex index) { return tensor_of((*views)[static_cast<std::size_t>(index)]); };
  const auto replace = [kept, views](TensorIndex index, const GridTensor& tensor) {
    const auto& [q, scales] = (*views)[static_cast<std::size_t>(index)];
    const auto write = [&](const TensorView& view, ByteSpan content) {
      FLOTILLA_CHECK(content.size() == view.bytes.size());
      std::ranges::copy(content, kept->begin() + (view.bytes.data() - kept->data()));
    };
    const bool matrix = q.dtype == DType::kI8;
    write(q, matrix ? as_bytes(std::span(tensor.q)) : as_bytes(std::span(tensor.vector_q)));
    write(scales,
          matrix ? as_bytes(std::span(tensor.scales)) : as_bytes(std::span<const float>(&tensor.vector_scale, 1)));
  };
  return OpenAnchor{read, replace, std::move(found->second)};
}

}  // namespace flotilla
