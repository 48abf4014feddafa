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

SafetensorsMetadata metadata_of(const AnchorLabel& label) {
  return {{kFormatField, std::to_string(kAnchorFormat)},
          {"run", label.run},
          {"version", std::to_string(label.version.value())},
          {"state", label.state.to_hex()}};
}

// Integers and scales of each tensor, in the bytes.
using TensorViews = std::vector<std::pair<TensorView, TensorView>>;

Result<TensorViews> find_tensors(const ModelDescription& description, ByteSpan bytes, const AnchorLabel& expected) {
  FLOTILLA_ASSIGN_OR_RETURN(const SafetensorsFile file, SafetensorsFile::parse(bytes).with_context("anchor"));
  const auto format = file.metadata().find(kFormatField);
  if (format == file.metadata().end()) return data_loss(fmt::format("anchor: the metadata has no {}", kFormatField));
  if (format->second != std::to_string(kAnchorFormat)) {
    return upgrade_needed("anchor_format", format->second, kAnchorFormat).with_context("anchor");
  }
  for (const auto& [name, value] : metadata_of(expected)) {
    const auto found = file.metadata().find(name);
    const std::string observed = found == file.metadata().end() ? "missing" : found->second;
    if (observed != value) return data_loss(fmt::format("anchor: {} is {}; expected {}", name, observed, value));
  }
  if (file.tensors().size() != 2 * description.tensors.size()) {
    return data_loss(
        fmt::format("anchor: {} tensors; expected {}", file.tensors().size(), 2 * description.tensors.size()));
  }
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

Result<Bytes> encode_anchor(const ModelDescription& description, const GridState& state, const AnchorLabel& label) {
  FLOTILLA_RETURN_IF_ERROR(check_grid(description, state).with_context("encode an anchor"));
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
  return write_safetensors(tensors, metadata_of(label)).with_context("encode an anchor");
}

Result<GridState> decode_anchor(const ModelDescription& description, ByteSpan bytes, const AnchorLabel& expected) {
  FLOTILLA_ASSIGN_OR_RETURN(const TensorViews views, find_tensors(description, bytes, expected));
  GridState state;
  for (const auto& tensor : views) state.tensors.push_back(tensor_of(tensor));
  FLOTILLA_RETURN_IF_ERROR(check_grid(description, state).with_context("anchor"));
  return state;
}

Result<OpenAnchor> open_anchor(const ModelDescription& description, Bytes bytes, const AnchorLabel& expected) {
  const auto kept = std::make_shared<Bytes>(std::move(bytes));
  FLOTILLA_ASSIGN_OR_RETURN(TensorViews found, find_tensors(description, *kept, expected));
  const auto views = std::make_shared<const TensorViews>(std::move(found));
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
  return OpenAnchor{read, replace};
}

}  // namespace flotilla
