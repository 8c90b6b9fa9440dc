// opforge/attention/wgmma_launch.h - the host's side of attention/wgmma.h: which shape, how tensors are described, what is copied first.
#ifndef OPFORGE_ATTENTION_WGMMA_LAUNCH_H_
#define OPFORGE_ATTENTION_WGMMA_LAUNCH_H_

#include <algorithm>
#include <atomic>
#include <cmath>
#include <optional>

#include "opforge/attention/checks.h"
#include "opforge/attention/wgmma.h"

namespace opforge {
namespace attention {

/// [batch, heads, length, dim] as the TMA can address it: data and strides in elements.
struct Heads {
  const void* data;
  int64_t batch, heads, length, dim;
  int64_t entry, head, row;
};

/// The tensor as it lies, or nothing where the TMA cannot address that.
inline std::optional<Heads> addressable(const TensorView& tensor) {
  const auto stride = [&](int dim) {
    // an axis of one has no next element: any stride will do
    return tensor.size(dim) == 1 ? (tensor.size(3) + 7) / 8 * 8 : tensor.stride(dim);
  };
  const Heads found{tensor.data_ptr(), tensor.size(0), tensor.size(1), tensor.size(2), tensor.size(3), stride(0), stride(1), stride(2)};
  const bool whole = (tensor.stride(3) == 1 || tensor.size(3) == 1) && reinterpret_cast<uintptr_t>(found.data) % 16 == 0;
  for (const int64_t apart : {found.entry, found.head, found.row})
    if (apart <= 0 || apart % 8 != 0 || apart >= int64_t{1} << 38) return std::nullopt;
  return whole ? std::optional<Heads>(found) : std::nullopt;
}

/// What a call asks, from the operator's parameters: scale 0 is 1 / sqrt(head_dim).
inline ForwardCall call_of(const TensorView& q, const TensorView& k, const TensorView& v, const TensorView& out, double scale, bool causal, int64_t window_left,
                           int64_t window_right, bool bottom_right, double softcap) {
  for (const int64_t length : {q.size(2), k.size(2)}) OPFORGE_CHECK(length < kFar / 2, ValueError, "a length of ", length, " is more than 2^28");
  OPFORGE_CHECK(q.size(0) * q.size(1) < 1 << 30, ValueError, "more than 2^30 heads");
  const Reach reach(q.size(2), k.size(2), causal, window_left, window_right, bottom_right);
  ForwardCall call{};
  call.queries = static_cast<int>(q.size(2));
  call.keys = static_cast<int>(k.size(2));
  call.heads = static_cast<int>(q.size(1));
  call.group = static_cast<int>(q.size(1) / k.size(1));
  call.value_dim = static_cast<int>(v.size(3));
  call.shift = static_cast<int>(reach.shift);
  call.left = static_cast<int>(std::min<int64_t>(reach.left, kFar));
  call.right = static_cast<int>(std::min<int64_t>(reach.right, kFar));
  call.all_heads = static_cast<int>(q.size(0) * q.size(1));
  // half of an H200's second-level cache, the rest is for what passes through
  const int64_t bytes = k.size(2) * (q.size(3) + v.size(3)) * 2, together = std::max<int64_t>(1, (int64_t{25} << 20) / bytes) * call.group;
  call.heads_together = static_cast<int>(std::min<int64_t>(together, call.all_heads));
  const double factor = scale != 0.0 ? scale : 1.0 / std::sqrt(static_cast<double>(q.size(3)));
  call.inner = softcap > 0 ? static_cast<float>(factor / softcap) : 0.0f;
  call.factor = static_cast<float>((softcap > 0 ? softcap : factor) * 1.4426950408889634);
  call.transformed = softcap > 0 || factor < 0;
  call.whole_stores = v.size(3) % 8 == 0 && reinterpret_cast<uintptr_t>(out.data_ptr()) % 16 == 0;
  return call;
}

/// Lengths, slopes and sinks: what is not given is null.
inline void give_sides(ForwardCall& call, const TensorView& q, const std::optional<TensorView>& key_lengths, const std::optional<TensorView>& slopes,
                       const std::optional<TensorView>& sinks) {
  const auto line = [](const std::optional<TensorView>& tensor, int64_t size, const char* name, int64_t* step) -> const void* {
    if (!tensor) return nullptr;
    OPFORGE_CHECK(tensor->ndim() == 1 && tensor->size(0) == size, ValueError, name, " must have one value for each entry or head");
    *step = tensor->stride(0);
    return tensor->data_ptr();
  };
  call.key_lengths = static_cast<const int*>(line(key_lengths, q.size(0), "key_lengths", &call.lengths_step));
  call.slopes = static_cast<const float*>(line(slopes, q.size(1), "alibi_slopes", &call.slopes_step));
  call.sinks = static_cast<const float*>(line(sinks, q.size(1), "sinks", &call.sinks_step));
  call.transformed |= call.slopes != nullptr;
}

/// Rows behind one another, each filled up with zeros to `pitch` elements.
template <typename T>
__global__ void gather_rows(const T* source, T* target, int64_t elements, int64_t heads, int64_t length, int64_t dim, int64_t pitch, int64_t entry, int64_t head,
                            int64_t row, int64_t col) {
  for (int64_t at = blockIdx.x * static_cast<int64_t>(blockDim.x) + threadIdx.x; at < elements; at += static_cast<int64_t>(gridDim.x) * blockDim.x) {
    const int64_t d = at % pitch, line = at / pitch, n = line % length, h = line / length % heads, b = line / length / heads;
    target[at] = d < dim ? source[b * entry + h * head + n * row + d * col] : store_from_float<T>(0.0f);
  }
}

/// The tensor's rows as the TMA can address them: as they lie, or copied to memory of this launch.
template <typename T>
class Gathered {
 public:
  Gathered(const TensorView& tensor, cudaStream_t stream)
      : found_(addressable(tensor)), scratch_(found_ ? 0 : tensor.size(0) * tensor.size(1) * tensor.size(2) * pitch_of(tensor) * sizeof(T), stream) {
    if (found_) return;
    const int64_t pitch = pitch_of(tensor), elements = tensor.size(0) * tensor.size(1) * tensor.size(2) * pitch;
    gather_rows<T><<<static_cast<unsigned>(std::min<int64_t>(ceil_div(elements, 256), 4096)), 256, 0, stream>>>(
        data<const T>(tensor), static_cast<T*>(scratch_.data()), elements, tensor.size(1), tensor.size(2), tensor.size(3), pitch, tensor.stride(0),
        tensor.stride(1), tensor.stride(2), tensor.stride(3));
    check_cuda(cudaGetLastError(), "gather_rows");
    found_ = Heads{scratch_.data(), tensor.size(0), tensor.size(1), tensor.size(2), tensor.size(3), tensor.size(1) * tensor.size(2) * pitch, tensor.size(2) * pitch, pitch};
  }
  CUtensorMap describe(int box_rows) const {
    return hopper::describe_heads(found_->data, hopper::kMapType<T>, found_->dim, found_->length, found_->heads, found_->batch, found_->row, found_->head,
                                  found_->entry, box_rows);
  }

 private:
  static int64_t pitch_of(const TensorView& tensor) { return (tensor.size(3) + 7) / 8 * 8; }
  std::optional<Heads> found_;
  Scratch scratch_;
};

/// Multiprocessors of the device in use.
inline int multiprocessors() {
  static std::atomic<int> known[64];  // by device; 0 is not known yet
  int device = 0;
  check_cuda(cudaGetDevice(&device), "cudaGetDevice");
  if (const int before = known[device % 64]) return before;
  int found = 0;
  check_cuda(cudaDeviceGetAttribute(&found, cudaDevAttrMultiProcessorCount, device), "cudaDeviceGetAttribute");
  return known[device % 64] = found;
}

template <typename S>
void launch_forward(const TensorView& q, const TensorView& k, const TensorView& v, const TensorView& out, const TensorView& lse, ForwardCall call, cudaStream_t stream) {
  using T = typename S::Element;
  static_assert(S::kSharedBytes <= 232448, "the rings fit a block's shared memory");
  constexpr auto kernel = attend_wgmma<S>;
  const Gathered<T> queries(q, stream), keys(k, stream), values(v, stream);
  call.row_blocks = static_cast<int>(ceil_div(call.queries, S::kBlockM));
  OPFORGE_CHECK(call.row_blocks * static_cast<int64_t>(call.all_heads) < 1 << 30, ValueError, "more than 2^30 blocks of queries");
  check_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, S::kSharedBytes), "attend_wgmma");
  const bool limited = call.left < kFar || call.right < kFar || call.key_lengths != nullptr;
  const unsigned grid = static_cast<unsigned>(std::min<int64_t>(multiprocessors(), call.row_blocks * static_cast<int64_t>(call.all_heads)));
  // with masks tiles cost what they see, and who is done takes the next; without, turns are as good and need no counter
  const Scratch counter(limited && call.row_blocks * static_cast<int64_t>(call.all_heads) > grid ? sizeof(int) : 0, stream);
  call.taken = static_cast<int*>(counter.data());
  if (call.taken != nullptr) check_cuda(cudaMemsetAsync(call.taken, 0, sizeof(int), stream), "cudaMemsetAsync");
  kernel<<<grid, S::kThreads, S::kSharedBytes, stream>>>(queries.describe(64), keys.describe(S::kBlockN), values.describe(S::kBlockN), data<T>(out), data<float>(lse), call);
  check_cuda(cudaGetLastError(), "attend_wgmma");
}

/// The largest of the blocks of keys that there are products for, up to `wanted`, that fits registers and shared memory.
constexpr int fitting(int wanted, int d, int e, int consumers, int stages) {
  int best = 64;
  for (const int size : {64, 80, 96, 128, 160, 176, 192}) {
    const int shared = 1024 + consumers * d * 128 + stages * size * (d + e) * 2 + 8 * (6 + 4 * stages) + 8;
    const int registers = size / 2 + size / 4 + e / 2 + 28;
    if (size <= wanted && shared <= 232448 && registers <= (consumers == 3 ? 160 : 240)) best = size;
  }
  return best;
}

/// The shape of a kernel for head dimensions to D and E: blocks of at most kBlockN keys in rings of kStages, or of kDefaultStages where that is 0.
template <typename T, int D, int E, int kBlockN, int kConsumers, int kStages, int kDefaultStages, bool kTurns, bool kSides>
using Fitted =
    ForwardShape<T, D, E, fitting(kBlockN, D, E, kConsumers, kStages ? kStages : kDefaultStages), kConsumers, kStages ? kStages : kDefaultStages, kTurns, kSides>;

/// Attention of 16-bit tensors.
///
/// kBlockN   keys of a block at the most; 0: by head dimension and the number of keys
/// kStages   blocks of keys, and of values, that shared memory holds; 0: by head dimension and the number of keys
/// kGroups   warpgroups that multiply, for head dimensions to 64: 2 or 3; 0: by the number of queries
template <typename T, int kBlockN, int kStages, bool kTurns, int kGroups, bool kSides>
void forward_wgmma_with(const TensorView& q, const TensorView& k, const TensorView& v, const TensorView& out, const TensorView& lse, const ForwardCall& call, cudaStream_t stream) {
  const int64_t d = q.size(3), e = v.size(3), queries = call.queries, keys = call.keys;
  constexpr int kNarrow = kBlockN == 0 ? 128 : kBlockN, kWide = kBlockN == 0 ? 176 : kBlockN;
  if (d <= 64 && e <= 64) {
    // blocks of 192 queries leave much of the last one empty where there are few: 1024 are 6 of 192, or 8 of 128. Three warpgroups do a fifth more
    // than two where no mask is at work, and what they gain goes to the masks' edges else (H200: 350 and 329 TFLOP/s at 1024, causal 238 and 263)
    const bool limited = call.left < kFar || call.right < kFar;
    const bool wasteful = ceil_div(queries, 192) * 192 * 20 > ceil_div(queries, 128) * 128 * (limited ? 21 : 23);
    if constexpr (kGroups != 3)
      if (kGroups == 2 || wasteful) return launch_forward<Fitted<T, 64, 64, kNarrow, 2, kStages, 3, kTurns, kSides>>(q, k, v, out, lse, call, stream);
    if constexpr (kGroups != 2) launch_forward<Fitted<T, 64, 64, kNarrow, 3, kStages, 3, kTurns, kSides>>(q, k, v, out, lse, call, stream);
    return;
  }
  if (d <= 128 && e <= 128) {
    // blocks of 176 keys leave more of the last one empty, and more of those on a mask's edge
    if constexpr (kBlockN == 0)
      if (keys <= 4096) return launch_forward<Fitted<T, 128, 128, 128, 2, kStages, 3, kTurns, kSides>>(q, k, v, out, lse, call, stream);
    return launch_forward<Fitted<T, 128, 128, kWide, 2, kStages, 2, kTurns, kSides>>(q, k, v, out, lse, call, stream);
  }
  if (d <= 192 && e <= 128) return launch_forward<Fitted<T, 192, 128, kNarrow, 2, kStages, 2, kTurns, kSides>>(q, k, v, out, lse, call, stream);
  OPFORGE_CHECK(d <= 256 && e <= 256, ValueError, "head dimensions of ", d, " and ", e, " are more than 256");
  launch_forward<ForwardShape<T, 256, 256, 80, 2, 2, kTurns, kSides>>(q, k, v, out, lse, call, stream);
}

template <typename T, int kBlockN, int kStages, bool kTurns, int kGroups>
void forward_wgmma(const TensorView& q, const TensorView& k, const TensorView& v, const TensorView& out, const TensorView& lse, const ForwardCall& call, cudaStream_t stream) {
  const bool sides = call.key_lengths != nullptr || call.slopes != nullptr || call.sinks != nullptr;
  if (sides) return forward_wgmma_with<T, kBlockN, kStages, kTurns, kGroups, true>(q, k, v, out, lse, call, stream);
  forward_wgmma_with<T, kBlockN, kStages, kTurns, kGroups, false>(q, k, v, out, lse, call, stream);
}

}  // namespace attention
}  // namespace opforge

#endif  // OPFORGE_ATTENTION_WGMMA_LAUNCH_H_
