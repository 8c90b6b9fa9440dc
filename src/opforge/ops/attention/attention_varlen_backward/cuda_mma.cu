// Weights made again on tensor cores (mma.m16n8k16): 64 rows of a sequence a block, against the rows of the other side.
//
// source    Dao, FlashAttention-2, arXiv:2307.08691, 2023, section 3.1
// idea      one kernel for both sides: a block of queries gathers dq, a block of keys dk and dv over all heads of its
//           group. Weights and slopes stay in registers between products. No atomics: the same bits each time
// moves     each input once from memory, and from L2 once more for each block of the other side of its sequence
// code      opforge/attention/varlen_backward.h
// limits    head dimensions to 128, padded to 64 or 128; sm_80 and later
// precision sums in float32; weights and slopes are rounded to the dtype before a product
/* opforge
layouts = ["contiguous", "rows", "strided"]
dtypes = ["float16", "bfloat16"]

[supports]
sums_fit_registers = "head_dim <= 128 and value_dim <= 128"
heads_fit_a_grid = "kv_heads * group <= 65535"
*/
#include <cmath>

#include "opforge/attention/varlen_backward.h"

namespace {

using opforge::TensorView;
namespace packed = opforge::attention::packed_gradients;

packed::Side side_of(const TensorView& t) {
  const bool vectors = t.stride(2) == 1 && t.stride(0) % 8 == 0 && t.stride(1) % 8 == 0 &&
                       reinterpret_cast<uintptr_t>(t.data_ptr()) % 16 == 0;
  return {t.data_ptr(), t.stride(0), t.stride(1), t.stride(2), vectors};
}

void attention_varlen_backward(TensorView q, TensorView k, TensorView v, TensorView out, TensorView lse,
                               TensorView dout, TensorView dlse, TensorView cu_seqlens_q, TensorView cu_seqlens_k,
                               TensorView dq, TensorView dk, TensorView dv, double scale, bool causal,
                               int64_t window_left, int64_t window_right, int64_t alignment, double softcap) {
  OPFORGE_CHECK_NDIM(q, 3);
  OPFORGE_CHECK_NDIM(k, 3);
  OPFORGE_CHECK_NDIM(v, 3);
  OPFORGE_CHECK_SAME_DTYPE(q, k);
  OPFORGE_CHECK_SAME_DTYPE(q, v);
  OPFORGE_CHECK_SAME_SHAPE(q, dq);
  OPFORGE_CHECK_SAME_SHAPE(k, dk);
  OPFORGE_CHECK_SAME_SHAPE(v, dv);
  OPFORGE_CHECK_SAME_SHAPE(out, dout);
  OPFORGE_CHECK_CONTIGUOUS(dq);
  OPFORGE_CHECK_CONTIGUOUS(dk);
  OPFORGE_CHECK_CONTIGUOUS(dv);
  opforge::check_device({"q", q});
  OPFORGE_CHECK(q.size(2) <= 128 && v.size(2) <= 128, ValueError, "head dimensions must be 128 at the most");
  if (dq.numel() + dk.numel() + dv.numel() == 0) return;
  OPFORGE_CHECK(k.size(1) > 0 && q.size(1) % k.size(1) == 0, ValueError, "q's heads must be a multiple of k's");
  const auto stream = opforge::current_stream(q);
  packed::Call call{};
  call.q = side_of(q), call.k = side_of(k), call.v = side_of(v), call.dout = side_of(dout), call.out = side_of(out);
  call.lse = opforge::data<const float>(lse), call.dlse = opforge::data<const float>(dlse);
  call.lse_h = lse.stride(0), call.lse_n = lse.stride(1), call.dlse_h = dlse.stride(0), call.dlse_n = dlse.stride(1);
  call.cu_q = opforge::data<const int>(cu_seqlens_q), call.cu_k = opforge::data<const int>(cu_seqlens_k);
  call.cu_q_n = cu_seqlens_q.stride(0), call.cu_k_n = cu_seqlens_k.stride(0);
  call.dq = dq.data_ptr(), call.dk = dk.data_ptr(), call.dv = dv.data_ptr();
  call.sequences = static_cast<int>(cu_seqlens_q.size(0)) - 1;
  call.heads = static_cast<int>(q.size(1)), call.group = static_cast<int>(q.size(1) / k.size(1));
  call.total_q = static_cast<int>(q.size(0)), call.total_k = static_cast<int>(k.size(0));
  call.head_dim = static_cast<int>(q.size(2)), call.value_dim = static_cast<int>(v.size(2));
  const auto reach = [](int64_t window) {
    return static_cast<int>(window < 0 ? packed::kFar : std::min<int64_t>(window, packed::kFar));
  };
  call.left = reach(window_left), call.right = causal ? 0 : reach(window_right);
  call.bottom_right = alignment == 1;
  call.scale = scale != 0.0 ? static_cast<float>(scale) : 1.0f / std::sqrt(static_cast<float>(q.size(2)));
  call.cap = static_cast<float>(softcap), call.inverse_cap = softcap > 0 ? static_cast<float>(1.0 / softcap) : 0.0f;
  const opforge::Scratch scratch(static_cast<int64_t>(call.heads) * call.total_q * sizeof(float), stream);
  call.middle = static_cast<float*>(scratch.data());
  const bool narrow = std::max(q.size(2), v.size(2)) <= 64;
  const auto run = [&](auto zero) {
    using T = decltype(zero);
    narrow ? packed::launch<T, 64>(call, stream) : packed::launch<T, 128>(call, stream);
  };
  switch (opforge::float_kind(q.dtype())) {
    case opforge::FloatKind::kFloat16:
      return run(opforge::half_t());
    case opforge::FloatKind::kBFloat16:
      return run(opforge::bfloat16_t());
    default:
      opforge::raise("TypeError", "q must be float16 or bfloat16 (got ", opforge::dtype_name(q.dtype()), ")");
  }
}

}  // namespace

OPFORGE_EXPORT(run, attention_varlen_backward)
