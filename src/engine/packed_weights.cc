#include "engine/packed_weights.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace flotilla {
namespace {

// Hands out the parts of one buffer. With no buffer it only counts.
class Carver {
 public:
  explicit Carver(std::uint8_t* base) : base_(base) {}

  template <typename T>
  T* take(std::int64_t count) {
    const std::int64_t offset = used_;
    used_ += (count * static_cast<std::int64_t>(sizeof(T)) + 63) / 64 * 64;
    return base_ == nullptr ? nullptr : reinterpret_cast<T*>(base_ + offset);
  }

  PackedMatrix matrix(std::int64_t rows, std::int64_t cols, const KernelTable& kernels) {
    PackedMatrix m;
    m.rows = rows;
    m.cols = cols;
    m.groups = groups_of(cols);
    m.panels = (rows + kLanes - 1) / kLanes;
    m.ways = kernels.ways;
    const std::int64_t cells = m.panels * m.groups * kLanes;
    m.q = take<std::int8_t>(cells * kActivationGroup);
    m.scales = take<std::uint16_t>(cells);
    if (kernels.needs_sums) m.sums = take<std::int16_t>(cells);
    return m;
  }

  std::int64_t used() const { return used_; }

 private:
  std::uint8_t* base_;
  std::int64_t used_ = 0;
};

struct Matrices {
  std::vector<PackedBlock> blocks;
  PackedMatrix head;
  std::optional<PackedMatrix> embedding;
};

Matrices carve(const ModelDescription& d, const KernelTable& kernels, Carver& carver) {
  Matrices m;
  const std::int64_t q_dim = std::int64_t{d.heads} * d.head_dim;
  const std::int64_t kv_dim = std::int64_t{d.kv_heads} * d.head_dim;
  for (std::int32_t layer = 0; layer < d.layers; ++layer) {
    PackedBlock& block = m.blocks.emplace_back();
    block.qkv = carver.matrix(q_dim + 2 * kv_dim, d.hidden, kernels);
    block.o = carver.matrix(d.hidden, q_dim, kernels);
    block.gate_up = carver.matrix(2 * std::int64_t{d.ffn}, d.hidden, kernels);
    block.down = carver.matrix(d.hidden, d.ffn, kernels);
  }
  m.head = carver.matrix(d.vocabulary, d.hidden, kernels);
  if (!d.tied_embeddings) m.embedding = carver.matrix(d.vocabulary, d.hidden, kernels);
  return m;
}

// Packs rows [16 * panel, ...) of a tensor into the panel `to` of a matrix.
template <int kWays>
void pack_panel(const GridTensor& tensor, std::int64_t tensor_rows, std::int64_t panel, const PackedMatrix& m,
                std::int64_t to) {
  const std::int64_t padded = m.groups * kActivationGroup;
  std::int8_t* q = m.q + to * padded * kLanes;
  std::uint16_t* scales = m.scales + to * m.groups * kLanes;
  const std::int64_t rows = std::min(kLanes, tensor_rows - panel * kLanes);
  for (std::int64_t j = 0; j < rows; ++j) {
    const std::int64_t row = panel * kLanes + j;
    const std::int8_t* source = tensor.q.data() + row * m.cols;
    std::int8_t* target = q + j * kWays;
    for (std::int64_t k = 0; k < m.cols; k += kWays) std::memcpy(target + k * kLanes, source + k, kWays);
    for (std::int64_t g = 0; g < m.groups; ++g) {
      scales[g * kLanes + j] = tensor.scales[static_cast<std::size_t>(row * m.groups + g)];
      if (m.sums == nullptr) continue;
      std::int32_t sum = 0;
      for (std::int64_t k = g * kActivationGroup; k < std::min((g + 1) * kActivationGroup, m.cols); ++k)
        sum += source[k];
      m.sums[(to * m.groups + g) * kLanes + j] = static_cast<std::int16_t>(sum);
    }
  }
}

// The way back.
template <int kWays>
void unpack_panel(const PackedMatrix& m, std::int64_t from, std::int64_t tensor_rows, std::int64_t panel,
                  GridTensor& tensor) {
  const std::int8_t* q = m.q + from * m.groups * kActivationGroup * kLanes;
  const std::uint16_t* scales = m.scales + from * m.groups * kLanes;
  const std::int64_t rows = std::min(kLanes, tensor_rows - panel * kLanes);
  for (std::int64_t j = 0; j < rows; ++j) {
    const std::int64_t row = panel * kLanes + j;
    const std::int8_t* source = q + j * kWays;
    std::int8_t* target = tensor.q.data() + row * m.cols;
    for (std::int64_t k = 0; k < m.cols; k += kWays) std::memcpy(target + k, source + k * kLanes, kWays);
    for (std::int64_t g = 0; g < m.groups; ++g) {
      tensor.scales[static_cast<std::size_t>(row * m.groups + g)] = scales[g * kLanes + j];
    }
  }
}

std::int64_t panels_of(std::int64_t rows) { return (rows + kLanes - 1) / kLanes; }

std::vector<float> vector_values(const GridTensor& tensor) {
  std::vector<float> values;
  values.reserve(tensor.vector_q.size());
  for (const std::int16_t q : tensor.vector_q) values.push_back(static_cast<float>(q) * tensor.vector_scale);
  return values;
}

}  // namespace

std::int64_t PackedWeights::bytes(const ModelDescription& description, const KernelTable& kernels) {
  Carver counter(nullptr);
  carve(description, kernels, counter);
  return counter.used();
}

Result<PackedWeights> PackedWeights::create(const ModelDescription& description, const KernelTable& kernels) {
  PackedWeights weights;
  weights.description_ = description;
  FLOTILLA_ASSIGN_OR_RETURN(weights.memory_, PageBuffer::allocate(bytes(description, kernels), "packed weights"));
  Carver carver(weights.memory_.data());
  Matrices matrices = carve(description, kernels, carver);
  weights.blocks_ = std::move(matrices.blocks);
  weights.head_ = matrices.head;
  weights.embedding_ = matrices.embedding;
  weights.find_places();
  return weights;
}

void PackedWeights::find_places() {
  places_.resize(description_.tensors.size());
  const auto place = [&](const PackedMatrix& matrix, std::initializer_list<TensorIndex> parts) {
    std::int64_t panel = 0;
    for (const TensorIndex part : parts) {
      places_[static_cast<std::size_t>(part)] = {matrix, panel};
      panel += panels_of(description_.tensors[static_cast<std::size_t>(part)].rows);
    }
  };
  for (std::size_t layer = 0; layer < blocks_.size(); ++layer) {
    const DecoderBlock& from = description_.blocks[layer];
    const PackedBlock& to = blocks_[layer];
    place(to.qkv, {from.q, from.k, from.v});
    place(to.o, {from.o});
    place(to.gate_up, {from.gate, from.up});
    place(to.down, {from.down});
  }
  place(head_, {description_.head});
  if (embedding_) place(*embedding_, {description_.embedding});
}

Status PackedWeights::load(const GridSource& state, ThreadPool& pool) {
  vectors_.resize(description_.tensors.size());
  FLOTILLA_RETURN_IF_ERROR(state([&](TensorIndex index, const GridTensor& tensor) {
    const auto i = static_cast<std::size_t>(index);
    const TensorSpec& spec = description_.tensors[i];
    if (spec.kind == TensorKind::kVector) {
      vectors_[i] = tensor;
      return;
    }
    const auto& [matrix, first_panel] = places_[i];
    const auto pack = matrix.ways == 2 ? pack_panel<2> : pack_panel<4>;
    const std::int64_t panels = panels_of(spec.rows);
    constexpr std::int64_t kPanelsATask = 8;
    pool.run((panels + kPanelsATask - 1) / kPanelsATask, [&](std::int64_t task, int) {
      for (std::int64_t panel = task * kPanelsATask; panel < std::min(panels, (task + 1) * kPanelsATask); ++panel) {
        pack(tensor, spec.rows, panel, matrix, first_panel + panel);
      }
    });
  }));
  load_vectors();
  return ok_status();
}

void PackedWeights::load_vectors() {
  const ModelDescription& d = description_;
  const auto values = [&](TensorIndex index) { return vector_values(vectors_[static_cast<std::size_t>(index)]); };
  for (std::size_t layer = 0; layer < blocks_.size(); ++layer) {
    const DecoderBlock& from = d.blocks[layer];
    PackedBlock& to = blocks_[layer];
    to.attention_norm = values(from.attention_norm);
    to.mlp_norm = values(from.mlp_norm);
    to.qkv_bias.clear();
    if (from.q_bias || from.k_bias || from.v_bias) {
      const std::pair<std::optional<TensorIndex>, TensorIndex> parts[] = {
          {from.q_bias, from.q}, {from.k_bias, from.k}, {from.v_bias, from.v}};
      for (const auto& [bias, matrix] : parts) {
        const auto rows = static_cast<std::size_t>(d.tensors[static_cast<std::size_t>(matrix)].rows);
        const std::vector<float> part = bias ? values(*bias) : std::vector<float>(rows);
        to.qkv_bias.insert(to.qkv_bias.end(), part.begin(), part.end());
      }
    }
  }
  final_norm_ = values(d.final_norm);
}

GridTensor PackedWeights::unpack(TensorIndex index) const {
  const auto i = static_cast<std::size_t>(index);
  const TensorSpec& spec = description_.tensors[i];
  if (spec.kind == TensorKind::kVector) return vectors_[i];
  const auto& [matrix, first_panel] = places_[i];
  GridTensor tensor;
  tensor.q.resize(static_cast<std::size_t>(spec.size()));
  tensor.scales.resize(static_cast<std::size_t>(spec.rows * matrix.groups));
  const auto unpack = matrix.ways == 2 ? unpack_panel<2> : unpack_panel<4>;
  for (std::int64_t panel = 0; panel < panels_of(spec.rows); ++panel) {
    unpack(matrix, first_panel + panel, spec.rows, panel, tensor);
  }
  return tensor;
}

void PackedWeights::embed(TokenId token, float* x) const {
  const PackedMatrix& m = embedding_ ? *embedding_ : head_;
  const std::int64_t panel = token / kLanes;
  const std::int64_t lane = token % kLanes;
  const std::int8_t* q = m.q + panel * m.groups * kActivationGroup * kLanes + lane * m.ways;
  const std::uint16_t* scales = m.scales + panel * m.groups * kLanes + lane;
  for (std::int64_t k = 0; k < m.cols; ++k) {
    const std::int64_t place = k / m.ways * kLanes * m.ways + k % m.ways, group = k / kActivationGroup;
    x[k] = static_cast<float>(q[place]) * bf16_to_float(scales[group * kLanes]);
  }
}

}  // namespace flotilla
