// opforge/attention/wgmma_backward_launch.h - the host's side of attention/wgmma_backward.h and wgmma_backward_wide.h: rows are prepared, gradients are computed, sums become dq.
#ifndef OPFORGE_ATTENTION_WGMMA_BACKWARD_LAUNCH_H_
#define OPFORGE_ATTENTION_WGMMA_BACKWARD_LAUNCH_H_

#include "opforge/attention/wgmma_backward_wide.h"
#include "opforge/attention/wgmma_launch.h"

namespace opforge {
namespace attention {

/// The tensors of a call.
struct BackwardTensors {
  TensorView q, k, v, out, lse, dout, dlse, dq, dk, dv;
};

inline void check_backward(const BackwardTensors& of) {
  OPFORGE_CHECK_NDIM(of.q, 4);
  OPFORGE_CHECK_NDIM(of.k, 4);
  OPFORGE_CHECK_NDIM(of.v, 4);
  OPFORGE_CHECK_NDIM(of.out, 4);
  OPFORGE_CHECK_NDIM(of.dout, 4);
  OPFORGE_CHECK_NDIM(of.lse, 3);
  OPFORGE_CHECK_NDIM(of.dlse, 3);
  for (const TensorView& tensor : {of.k, of.v, of.out, of.dout, of.dq, of.dk, of.dv}) OPFORGE_CHECK_SAME_DTYPE(of.q, tensor);
  for (const TensorView& gradient : {of.dq, of.dk, of.dv}) OPFORGE_CHECK_CONTIGUOUS(gradient);
  OPFORGE_CHECK(of.q.size(0) == of.k.size(0) && of.q.size(0) == of.v.size(0), ValueError, "q, k and v must have one batch");
  OPFORGE_CHECK(of.k.size(1) == of.v.size(1) && of.k.size(2) == of.v.size(2), ValueError, "k and v must have the same heads and lengths");
  OPFORGE_CHECK(of.q.size(3) == of.k.size(3), ValueError, "q and k must have the same head dimension");
  OPFORGE_CHECK(of.k.size(1) == 0 ? of.q.size(1) == 0 : of.q.size(1) % of.k.size(1) == 0, ValueError, "q's heads must be a multiple of k's");
}

/// What a call asks, from the operator's parameters: scale 0 is 1 / sqrt(head_dim).
inline BackwardCall backward_call_of(const BackwardTensors& of, double scale, bool causal, int64_t window_left, int64_t window_right, bool bottom_right,
                                     double softcap, const std::optional<TensorView>& key_lengths, const std::optional<TensorView>& slopes) {
  ForwardCall forward = call_of(of.q, of.k, of.v, of.dv, scale, causal, window_left, window_right, bottom_right, softcap);
  give_sides(forward, of.q, key_lengths, slopes, std::nullopt);
  BackwardCall call{};
  call.queries = forward.queries;
  call.keys = forward.keys;
  call.heads = forward.heads;
  call.group = forward.group;
  call.kv_heads = forward.heads / forward.group;
  call.all_kv_heads = forward.all_heads / forward.group;
  call.head_dim = static_cast<int>(of.q.size(3));
  call.value_dim = forward.value_dim;
  call.shift = forward.shift;
  call.left = forward.left;
  call.right = forward.right;
  call.factor = forward.factor;
  call.inner = forward.inner;
  call.scale = static_cast<float>(scale != 0.0 ? scale : 1.0 / std::sqrt(static_cast<double>(of.q.size(3))));
  call.whole_values = forward.whole_stores;
  call.whole_keys = can_vectorize(static_cast<const half_t*>(of.dk.data_ptr()), of.dk.size(3));
  call.key_lengths = forward.key_lengths;
  call.slopes = forward.slopes;
  call.lengths_step = forward.lengths_step;
  call.slopes_step = forward.slopes_step;
  return call;
}

template <typename T>
Lines<T> lines_of(const TensorView& tensor) {
  return {data<const T>(tensor), tensor.stride(0), tensor.stride(1), tensor.stride(2), tensor.ndim() == 4 ? tensor.stride(3) : 0};
}

/// The kernel of a shape.
template <typename S>
constexpr auto differentiate() {
  if constexpr (S::kWide) return differentiate_wgmma_wide<S>;
  else return differentiate_wgmma<S>;
}

template <typename S>
void launch_backward(const BackwardTensors& of, BackwardCall call, cudaStream_t stream) {
  using T = typename S::Element;
  static_assert(S::kSharedBytes <= 232448, "the rings fit a block's shared memory");
  constexpr auto kernel = differentiate<S>();
  const Gathered<T> q(of.q, stream), k(of.k, stream), v(of.v, stream), dout(of.dout, stream);
  const int64_t all_heads = of.q.size(0) * of.q.size(1);
  call.rows = static_cast<int>(ceil_div(call.queries, S::kM) * S::kM);
  call.key_blocks = static_cast<int>(ceil_div(call.keys, S::kN));
  const int64_t all_rows = all_heads * call.rows, tiles = call.key_blocks * static_cast<int64_t>(call.all_kv_heads);
  OPFORGE_CHECK(tiles < int64_t{1} << 30 && all_rows / 64 * S::kBoxesD < int64_t{1} << 30, ValueError, "more than 2^30 blocks of keys or queries");
  // half of an H200's second-level cache for what heads of a group bring to each block of keys, and add to. In order, blocks of keys of one head wait for one
  // another: of more heads at a time, for those that have begun long before
  const int64_t bytes = static_cast<int64_t>(call.rows) * call.group * (S::kD * 6 + S::kE * 2);
  const int64_t together = std::max<int64_t>(S::kOrdered ? 16 : 1, (int64_t{25} << 20) / bytes);
  call.heads_together = static_cast<int>(std::min<int64_t>(together, call.all_kv_heads));

  const int64_t sums_bytes = all_rows * S::kD * 4, turns = S::kOrdered ? all_rows / 64 * S::kBoxesD : 0;
  const int64_t zero_bytes = sums_bytes + (S::kOrdered ? (turns + 1) * 4 : 0);
  const Scratch zeros(zero_bytes, stream), rows(2 * all_rows * 4, stream);
  call.sums = static_cast<float*>(zeros.data());
  call.turns = reinterpret_cast<int*>(static_cast<unsigned char*>(zeros.data()) + sums_bytes);
  call.taken = call.turns + turns;
  float* lse = static_cast<float*>(rows.data());
  call.lse = lse;
  call.middle = lse + all_rows;
  check_cuda(cudaMemsetAsync(call.sums, 0, zero_bytes, stream), "cudaMemsetAsync");
  const bool vectors = addressable(of.out) && addressable(of.dout) && call.value_dim % 8 == 0;
  const auto prepare = vectors ? prepare_rows<T, true> : prepare_rows<T, false>;
  prepare<<<static_cast<unsigned>(ceil_div(all_rows, 16)), 256, 0, stream>>>(lines_of<T>(of.out), lines_of<T>(of.dout), lines_of<float>(of.lse),
                                                                            lines_of<float>(of.dlse), lse, lse + all_rows, call.heads, call.queries, call.rows, call.value_dim, all_rows);
  check_cuda(cudaGetLastError(), "prepare_rows");
  check_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, S::kSharedBytes), "differentiate_wgmma");
  kernel<<<static_cast<unsigned>(tiles), S::kThreads, S::kSharedBytes, stream>>>(q.describe(S::kM), k.describe(S::kN), v.describe(S::kN), dout.describe(S::kM),
                                                                                 data<T>(of.dk), data<T>(of.dv), call);
  check_cuda(cudaGetLastError(), "differentiate_wgmma");
  const int squares = call.rows / 64 * S::kBoxesD;
  place_queries<T><<<static_cast<unsigned>(all_heads * squares), 128, 0, stream>>>(call.sums, data<T>(of.dq), S::kBoxesD, squares, call.queries, call.head_dim,
                                                                                    can_vectorize(data<const T>(of.dq), call.head_dim), call.scale);
  check_cuda(cudaGetLastError(), "place_queries");
}

template <typename T, int kStages, bool kBent, bool kOrdered>
void backward_wgmma_with(const BackwardTensors& of, const BackwardCall& call, cudaStream_t stream) {
  const int64_t d = of.q.size(3), e = of.v.size(3);
  if (d <= 64 && e <= 64) return launch_backward<BackwardShape<T, 64, 64, 128, kStages, kBent, kOrdered>>(of, call, stream);
  if (d <= 128 && e <= 128) return launch_backward<BackwardShape<T, 128, 128, 64, kStages, kBent, kOrdered>>(of, call, stream);
  if (d <= 192 && e <= 128) return launch_backward<WideBackwardShape<T, 192, 128, kStages, kBent, kOrdered>>(of, call, stream);
  OPFORGE_CHECK(d <= 256 && e <= 256, ValueError, "head dimensions of ", d, " and ", e, " are more than 256");
  // shared memory has room for two blocks of such queries
  launch_backward<WideBackwardShape<T, 256, 256, 2, kBent, kOrdered>>(of, call, stream);
}

template <typename T, int kStages, bool kOrdered>
void backward_wgmma(const BackwardTensors& of, const BackwardCall& call, cudaStream_t stream) {
  if (call.inner != 0.0f || call.slopes != nullptr) return backward_wgmma_with<T, kStages, true, kOrdered>(of, call, stream);
  backward_wgmma_with<T, kStages, false, kOrdered>(of, call, stream);
}

/// The operator, of 16-bit tensors. A file's Config: kStages blocks of queries, and of what arrives for their outputs, are in shared memory; kOrdered: the
/// same bits each time. A bias, a mask and dropout are refused by what the file supports; sinks are in lse alone.
template <typename Config>
void attention_backward(TensorView q, TensorView k, TensorView v, TensorView out, TensorView lse, TensorView dout, TensorView dlse,
                        std::optional<TensorView> key_lengths, std::optional<TensorView>, std::optional<TensorView>, std::optional<TensorView> alibi_slopes,
                        std::optional<TensorView>, TensorView dq, TensorView dk, TensorView dv, double scale, bool causal, int64_t window_left,
                        int64_t window_right, int64_t alignment, double softcap, double, int64_t, int64_t) {
  check_device({"q", q});
  const BackwardTensors of{q, k, v, out, lse, dout, dlse, dq, dk, dv};
  check_backward(of);
  const cudaStream_t stream = current_stream(q);
  if (q.numel() == 0 || k.numel() == 0) {
    // sums of nothing
    for (const TensorView& gradient : {dq, dk, dv})
      if (gradient.numel() > 0) check_cuda(cudaMemsetAsync(gradient.data_ptr(), 0, gradient.numel() * 2, stream), "cudaMemsetAsync");
    return;
  }
  const BackwardCall call = backward_call_of(of, scale, causal, window_left, window_right, alignment == 1, softcap, key_lengths, alibi_slopes);
  switch (float_kind(q.dtype())) {
    case FloatKind::kFloat16: return backward_wgmma<half_t, Config::kStages, Config::kOrdered>(of, call, stream);
    case FloatKind::kBFloat16: return backward_wgmma<bfloat16_t, Config::kStages, Config::kOrdered>(of, call, stream);
    default: raise("TypeError", "q must be float16 or bfloat16 (got ", dtype_name(q.dtype()), ")");
  }
}

}  // namespace attention
}  // namespace opforge

#endif  // OPFORGE_ATTENTION_WGMMA_BACKWARD_LAUNCH_H_
