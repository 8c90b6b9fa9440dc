// opforge/attention/wgmma_fp8_launch.h - the host's side of attention/wgmma_fp8.h: checks, scales, transposed values, which shape.
#ifndef OPFORGE_ATTENTION_WGMMA_FP8_LAUNCH_H_
#define OPFORGE_ATTENTION_WGMMA_FP8_LAUNCH_H_

#include "opforge/attention/wgmma_fp8.h"
#include "opforge/attention/wgmma_launch.h"

namespace opforge {
namespace attention {

/// Rows of bytes as the TMA can address them: as they lie, or copied to memory of this launch.
class GatheredBytes {
 public:
  GatheredBytes(const TensorView& tensor, cudaStream_t stream) : tensor_(tensor), copied_(!addressable_bytes(tensor)), scratch_(copied_ ? rows() * pitch() : 0, stream) {
    if (!copied_) return;
    OPFORGE_LAUNCH((gather_rows<float8_e4m3_t>), static_cast<unsigned>(std::min<int64_t>(ceil_div(rows() * pitch(), 256), 4096)), 256, 0, stream,
                   data<const float8_e4m3_t>(tensor), static_cast<float8_e4m3_t*>(scratch_.data()), rows() * pitch(), tensor.size(1), tensor.size(2), tensor.size(3),
                   pitch(), tensor.stride(0), tensor.stride(1), tensor.stride(2), tensor.stride(3));
  }
  CUtensorMap describe(int box_dim, int box_rows) const {
    const int64_t batch = tensor_.size(0), heads = tensor_.size(1), length = tensor_.size(2), dim = tensor_.size(3);
    if (copied_) return hopper::describe_bytes(scratch_.data(), dim, length, heads, batch, pitch(), length * pitch(), heads * length * pitch(), box_dim, box_rows);
    return hopper::describe_bytes(tensor_.data_ptr(), dim, length, heads, batch, step(tensor_, 2), step(tensor_, 1), step(tensor_, 0), box_dim, box_rows);
  }

 private:
  // an axis of one has no next element: any stride will do
  static int64_t step(const TensorView& tensor, int dim) { return tensor.size(dim) == 1 ? (tensor.size(3) + 15) / 16 * 16 : tensor.stride(dim); }
  static bool addressable_bytes(const TensorView& tensor) {
    for (int dim = 0; dim < 3; ++dim)
      if (step(tensor, dim) <= 0 || step(tensor, dim) % 16 != 0 || step(tensor, dim) >= int64_t{1} << 39) return false;
    return (tensor.stride(3) == 1 || tensor.size(3) == 1) && reinterpret_cast<uintptr_t>(tensor.data_ptr()) % 16 == 0;
  }
  int64_t pitch() const { return (tensor_.size(3) + 15) / 16 * 16; }
  int64_t rows() const { return tensor_.size(0) * tensor_.size(1) * tensor_.size(2); }
  const TensorView& tensor_;
  bool copied_;
  Scratch scratch_;
};

/// Values with their keys side by side, in the order of key_at.
class TransposedValues {
 public:
  TransposedValues(const TensorView& v, cudaStream_t stream) : v_(v), pitch_((v.size(2) + 15) / 16 * 16), scratch_(v.size(0) * v.size(1) * v.size(3) * pitch_, stream) {
    const int64_t key_tiles = ceil_div(v.size(2), 128), column_tiles = ceil_div(v.size(3), 64), tiles = key_tiles * column_tiles * v.size(0) * v.size(1);
    bool words = v.stride(3) == 1 && v.size(3) % 4 == 0 && reinterpret_cast<uintptr_t>(v.data_ptr()) % 4 == 0;
    for (int dim = 0; dim < 3; ++dim) words &= v.size(dim) == 1 || v.stride(dim) % 4 == 0;
    OPFORGE_LAUNCH(transpose_values, static_cast<unsigned>(std::min<int64_t>(tiles, 8 * multiprocessors())), 256, 0, stream,
                   static_cast<const unsigned char*>(v.data_ptr()), static_cast<unsigned char*>(scratch_.data()), tiles, static_cast<int>(key_tiles),
                   static_cast<int>(column_tiles), static_cast<int>(v.size(1)), static_cast<int>(v.size(2)), static_cast<int>(v.size(3)), pitch_, v.stride(0),
                   v.stride(1), v.stride(2), v.stride(3), words);
  }
  CUtensorMap describe(int box_keys, int box_columns) const {
    const int64_t head = v_.size(3) * pitch_;
    return hopper::describe_bytes(scratch_.data(), pitch_, v_.size(3), v_.size(1), v_.size(0), pitch_, head, v_.size(1) * head, box_keys, box_columns);
  }

 private:
  const TensorView& v_;
  int64_t pitch_;
  Scratch scratch_;
};

/// Scales of [batch, heads, parts]: steps are 0 along an axis of one.
inline const float* give_scales(const TensorView& scales, int64_t batch, int64_t heads, int64_t parts, const char* name, int64_t* entry, int64_t* head, int64_t* part) {
  OPFORGE_CHECK(scales.ndim() == 3 && scales.size(0) == batch && scales.size(1) == heads && scales.size(2) == parts, ValueError, name, " must be [", batch, ", ", heads,
                ", ", parts, "]");
  *entry = batch == 1 ? 0 : scales.stride(0);
  *head = heads == 1 ? 0 : scales.stride(1);
  *part = parts == 1 ? 0 : scales.stride(2);
  for (const int64_t step : {*entry, *head, *part}) OPFORGE_CHECK(step >= 0, ValueError, name, " lies backwards in memory");
  OPFORGE_CHECK((batch - 1) * *entry + (heads - 1) * *head + (parts - 1) * *part < int64_t{1} << 31, ValueError, name, " spans more than 2^31 elements");
  return data<const float>(scales);
}

/// Scales of v: of heads, or of columns side by side, copied where they lie otherwise.
class ScalesOfValues {
 public:
  ScalesOfValues(const TensorView& scales, const TensorView& v, bool columns, Fp8Call& call, cudaStream_t stream)
      : scratch_(columns && v.size(3) > 1 && scales.stride(2) != 1 ? v.size(0) * v.size(1) * v.size(3) * sizeof(float) : 0, stream) {
    int64_t step;
    call.v_scale = give_scales(scales, v.size(0), v.size(1), columns ? v.size(3) : 1, "v_scale", &call.v_scale_entry, &call.v_scale_head, &step);
    call.v_columns = columns;
    if (scratch_.data() == nullptr) return;
    const int64_t elements = v.size(0) * v.size(1) * v.size(3);
    OPFORGE_LAUNCH((gather_rows<float>), static_cast<unsigned>(ceil_div(elements, 256)), 256, 0, stream, call.v_scale, static_cast<float*>(scratch_.data()), elements,
                   v.size(1), int64_t{1}, v.size(3), v.size(3), call.v_scale_entry, call.v_scale_head, int64_t{0}, step);
    call.v_scale = static_cast<const float*>(scratch_.data());
    call.v_scale_entry = v.size(1) * v.size(3);
    call.v_scale_head = v.size(3);
  }

 private:
  Scratch scratch_;
};

inline void check_fp8(const TensorView& q, const TensorView& k, const TensorView& v, const TensorView& out, const TensorView& lse) {
  for (const TensorView* tensor : {&q, &k, &v, &out}) OPFORGE_CHECK(tensor->ndim() == 4, ValueError, "q, k, v and out must have four axes");
  for (const TensorView* tensor : {&q, &k, &v}) OPFORGE_CHECK(holds_fp8<float8_e4m3_t>(*tensor), TypeError, "q, k and v must be float8_e4m3fn");
  OPFORGE_CHECK_CONTIGUOUS(out);
  OPFORGE_CHECK_CONTIGUOUS(lse);
  OPFORGE_CHECK(q.size(0) == k.size(0) && q.size(0) == v.size(0), ValueError, "q, k and v must have one batch");
  OPFORGE_CHECK(k.size(1) == v.size(1) && k.size(2) == v.size(2), ValueError, "k and v must have the same heads and lengths");
  OPFORGE_CHECK(q.size(3) == k.size(3), ValueError, "q and k must have the same head dimension");
  OPFORGE_CHECK(k.size(1) == 0 ? q.size(1) == 0 : q.size(1) % k.size(1) == 0, ValueError, "q's heads must be a multiple of k's");
}

template <typename S>
void launch_fp8(const TensorView& q, const TensorView& k, const TensorView& v, const TensorView& out, const TensorView& lse, Fp8Call call, int64_t k_block,
                cudaStream_t stream) {
  static_assert(S::kSharedBytes <= 232448, "the rings fit a block's shared memory");
  constexpr auto kernel = attend_wgmma_fp8<S>;
  OPFORGE_CHECK(k_block % S::kBlockN == 0, ValueError, "k_block must be a multiple of ", S::kBlockN, " (got ", k_block, ")");
  call.k_blocks = static_cast<int>(k_block / S::kBlockN);
  const GatheredBytes queries(q, stream), keys(k, stream);
  const TransposedValues values(v, stream);
  call.row_blocks = static_cast<int>(ceil_div(call.queries, S::kBlockM));
  OPFORGE_CHECK(call.row_blocks * static_cast<int64_t>(call.all_heads) < 1 << 30, ValueError, "more than 2^30 blocks of queries");
  const bool limited = call.left < kFar || call.right < kFar || call.key_lengths != nullptr;
  const unsigned grid = static_cast<unsigned>(std::min<int64_t>(multiprocessors(), call.row_blocks * static_cast<int64_t>(call.all_heads)));
  // with masks tiles cost what they see, and who is done takes the next; without, turns are as good and need no counter
  const Scratch counter(limited && call.row_blocks * static_cast<int64_t>(call.all_heads) > grid ? sizeof(int) : 0, stream);
  call.taken = static_cast<int*>(counter.data());
  if (call.taken != nullptr) check_cuda(cudaMemsetAsync(call.taken, 0, sizeof(int), stream), "cudaMemsetAsync");
  OPFORGE_LAUNCH(kernel, grid, S::kThreads, S::kSharedBytes, stream, queries.describe(S::kBoxD, 64), keys.describe(S::kBoxD, S::kBlockN),
                 values.describe(S::kBoxN, S::kE), out.data_ptr(), data<float>(lse), call);
}

/// Attention of E4M3 tensors.
///
/// kBlockN    keys of a block; 0: 128, or where keys are many and one scale serves all of them 160, and 192 where head dimensions are 64
/// kStages    blocks of keys, and of values, that shared memory holds
/// kGroups    warpgroups that multiply, for head dimensions to 64: 2 or 3
/// kEvery     blocks of keys after which sums are carried on in float32 (2 at the most of 192); 0: never
template <int kBlockN, int kStages, bool kTurns, int kGroups, int kEvery, bool kSides>
void forward_fp8(const TensorView& q, const TensorView& k, const TensorView& v, const TensorView& out, const TensorView& lse, const Fp8Call& call, int64_t k_block,
                 cudaStream_t stream) {
  const int64_t d = q.size(3), e = v.size(3);
  constexpr int kNarrow = kBlockN == 0 ? 128 : kBlockN;
  if (d <= 64 && e <= 64) {
    if constexpr (kBlockN == 0)
      if (k_block == 0 && call.keys > 2048) return launch_fp8<Fp8Shape<64, 64, 192, kGroups, kStages, kTurns, kEvery < 2 ? kEvery : 2, kSides>>(q, k, v, out, lse, call, k_block, stream);
    return launch_fp8<Fp8Shape<64, 64, kNarrow, kGroups, kStages, kTurns, kEvery, kSides>>(q, k, v, out, lse, call, k_block, stream);
  }
  if (d <= 128 && e <= 128) {
    // longer chains of exponentials for each product: 6 % faster than 128 keys at 16384, and no faster at 4096
    if constexpr (kBlockN == 0)
      if (k_block == 0 && call.keys > 4096) return launch_fp8<Fp8Shape<128, 128, 160, 2, 2, kTurns, kEvery < 3 ? kEvery : 3, kSides>>(q, k, v, out, lse, call, k_block, stream);
    return launch_fp8<Fp8Shape<128, 128, kNarrow, 2, kStages, kTurns, kEvery, kSides>>(q, k, v, out, lse, call, k_block, stream);
  }
  OPFORGE_CHECK(d <= 192 && e <= 128, ValueError, "head dimensions of ", d, " and ", e, " are more than 192 and 128");
  launch_fp8<Fp8Shape<192, 128, kNarrow, 2, 2, kTurns, kEvery, kSides>>(q, k, v, out, lse, call, k_block, stream);
}

}  // namespace attention
}  // namespace opforge

#endif  // OPFORGE_ATTENTION_WGMMA_FP8_LAUNCH_H_
