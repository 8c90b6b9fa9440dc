// opforge/attention/varlen_backward.h - gradients of attention of packed sequences on the GPU, on mma.m16n8k16.
//
// One kernel serves both sides. A block has 64 rows of its own side, 16 for each warp, and walks over the rows of the
// other side, 32 at a time, two buffers ahead (cp.async). Of queries: dq += slopes k. Of keys, whose weights are
// transposed: dv += weights dout, dk += slopes q. Weights and slopes stay in registers: a tile of sums is the left
// factor of the next product as it lies. A block finds its sequence by a scan of the offsets.
//
// source    Dao, FlashAttention-2, arXiv:2307.08691, 2023, section 3.1
#ifndef OPFORGE_ATTENTION_VARLEN_BACKWARD_H_
#define OPFORGE_ATTENTION_VARLEN_BACKWARD_H_

#include <algorithm>

#include "opforge/arch/scratch.h"
#include "opforge/arch/tensor_core.h"
#include "opforge/attention/decode.h"

namespace opforge {
namespace attention {
namespace packed_gradients {

using decode::packed;
using decode::place;

constexpr int kWarps = 4, kThreads = 32 * kWarps, kOwn = 16 * kWarps, kOther = 32, kFar = 1 << 29;
constexpr float kLog2E = 1.4426950408889634f;

// A packed tensor [rows, heads, dim].
struct Side {
  const void* data;
  int64_t row, head, col;
  bool vectors;
};

struct Call {
  Side q, k, v, dout, out;
  const float *lse, *dlse;
  const int *cu_q, *cu_k;
  void *dq, *dk, *dv;
  float* middle;
  int64_t lse_h, lse_n, dlse_h, dlse_n, cu_q_n, cu_k_n;
  int sequences, heads, group, total_q, total_k, head_dim, value_dim, left, right;
  bool bottom_right;
  float scale, cap, inverse_cap;
};

// Where a block's rows lie: those of its sequence from `first` on, of `own` from `own_at` on, against `other` rows.
struct Place {
  int sequence, first_slot;
  bool wrong;
};

// The last sequence with rows whose room begins at `slot` or before: that of the r-th begins at offset / kOwn + r.
__device__ inline Place find(const int* offsets, int64_t step, int sequences, int slot, int rows) {
  __shared__ int counts[kWarps], bests[kWarps], firsts[kWarps];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  int best = -1, first = -1, before = 0;
  bool strange = false;
  for (int start = 0; start < sequences; start += kThreads) {
    const int number = start + threadIdx.x;
    const bool there = number < sequences;
    const int offset = there ? offsets[number * step] : 0, after = there ? offsets[(number + 1) * step] : 0;
    strange |= there && (after < offset || after > rows || (number == 0 && offset != 0));
    const unsigned some = __ballot_sync(kFullMask, there && after > offset);
    if (lane == 0) counts[warp] = __popc(some);
    __syncthreads();
    int rank = before + __popc(some & ((1u << lane) - 1u));
    for (int w = 0; w < kWarps; ++w) {
      if (w < warp) rank += counts[w];
      before += counts[w];
    }
    const int begins = offset / kOwn + rank;
    if (there && after > offset && begins <= slot) best = number, first = begins;
    __syncthreads();
  }
  for (int o = 16; o > 0; o /= 2) {
    best = max(best, __shfl_xor_sync(kFullMask, best, o));
    first = max(first, __shfl_xor_sync(kFullMask, first, o));
  }
  if (lane == 0) bests[warp] = best, firsts[warp] = first;
  const bool wrong = __syncthreads_or(strange) != 0;
  for (int w = 0; w < kWarps; ++w) best = max(best, bests[w]), first = max(first, firsts[w]);
  return {best, first, wrong};
}

// Starts copying rows [first, first + kRows) of a sequence's rows, 0 beyond `rows` and `dim`.
template <typename T, int kDim, int kRows>
__device__ __forceinline__ void fetch(T* target, const Side& side, int64_t base, int head, int first, int rows,
                                      int dim) {
  constexpr int kPieces = kDim / 8;
  const T* source = static_cast<const T*>(side.data) + base * side.row + head * side.head;
  for (int at = threadIdx.x; at < kRows * kPieces; at += kThreads) {
    const int row = at / kPieces, piece = at % kPieces;
    const int left = first + row < rows ? max(0, min(8, dim - piece * 8)) : 0;
    const T* from = source + (left > 0 ? (first + row) * side.row + piece * 8 * side.col : 0);
    T* to = target + place<kDim>(row, piece);
    if (side.vectors) {
      start_copy(to, left > 0 ? from : static_cast<const T*>(side.data), left * static_cast<int>(sizeof(T)));
    } else {
      for (int j = 0; j < 8; ++j) to[j] = j < left ? from[j * side.col] : store_from_float<T>(0.0f);
    }
  }
}

/// Of each row of a head the sum of dout * out, less what arrives for its log-sum-exp; a warp a row.
template <typename T>
__global__ void __launch_bounds__(kThreads) middles(Call call) {
  const int64_t line = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32;
  const int h = blockIdx.y, lane = threadIdx.x % 32;
  if (line >= call.total_q) return;
  const T* out = static_cast<const T*>(call.out.data) + line * call.out.row + h * call.out.head;
  const T* dout = static_cast<const T*>(call.dout.data) + line * call.dout.row + h * call.dout.head;
  float sum = 0.0f;
  for (int e = lane; e < call.value_dim; e += 32)
    sum += load_as_float(out[e * call.out.col]) * load_as_float(dout[e * call.dout.col]);
  for (int o = 16; o > 0; o /= 2) sum += __shfl_xor_sync(kFullMask, sum, o);
  if (lane == 0)
    call.middle[static_cast<int64_t>(h) * call.total_q + line] = sum - call.dlse[h * call.dlse_h + line * call.dlse_n];
}

// Stores `value` into the rows of the block `slot` from `behind` on.
template <typename T>
__device__ void fill(void* target, int slot, int behind, int rows, int head, int heads, int dim, float value) {
  for (int at = threadIdx.x; at < kOwn * dim; at += kThreads) {
    const int row = slot * kOwn + at / dim;
    if (row >= behind && row < rows)
      static_cast<T*>(target)[(static_cast<int64_t>(row) * heads + head) * dim + at % dim] = store_from_float<T>(value);
  }
}

// Stores a warp's 16 rows of sums.
template <typename T, int kDim>
__device__ __forceinline__ void put(void* target, const float (&sums)[kDim / 8][4], float factor, float lost,
                                    int64_t base, int first, int rows, int head, int heads, int dim) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int n = 0; n < kDim / 8; ++n)
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const int row = first + lane / 4 + 8 * (e / 2), col = n * 8 + lane % 4 * 2 + e % 2;
      if (row < rows && col < dim)
        static_cast<T*>(target)[((base + row) * heads + head) * dim + col] =
            store_from_float<T>(sums[n][e] * factor + lost);
    }
}

/// kOfKeys: the rows of the block are keys, and the gradients those of keys and values.
template <typename T, int kDim, bool kOfKeys>
__global__ void __launch_bounds__(kThreads) gradients(Call call) {
  OPFORGE_DYNAMIC_SHARED(uint4, shared);
  __shared__ float levels[2][kOther], means[2][kOther];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, slot = blockIdx.x, kv_heads = call.heads / call.group;
  const int own_total = kOfKeys ? call.total_k : call.total_q, other_total = kOfKeys ? call.total_q : call.total_k;
  const int* own_offsets = kOfKeys ? call.cu_k : call.cu_q;
  const int* other_offsets = kOfKeys ? call.cu_q : call.cu_k;
  const int64_t own_step = kOfKeys ? call.cu_k_n : call.cu_q_n, other_step = kOfKeys ? call.cu_q_n : call.cu_k_n;
  const int head = blockIdx.y;  // of queries, or of keys
  const Place found = find(own_offsets, own_step, call.sequences, slot, own_total);
  // rows behind the last offset are of no sequence: 0, and all are NaN where offsets say nothing
  const int behind = found.wrong ? 0 : own_offsets[call.sequences * own_step];
  if ((slot + 1) * kOwn > behind) {
    const float nothing = found.wrong ? NAN : 0.0f;
    fill<T>(kOfKeys ? call.dk : call.dq, slot, behind, own_total, head, kOfKeys ? kv_heads : call.heads, call.head_dim,
            nothing);
    if (kOfKeys) fill<T>(call.dv, slot, behind, own_total, head, kv_heads, call.value_dim, nothing);
  }
  if (found.wrong || found.sequence < 0) return;
  const int own_base = own_offsets[found.sequence * own_step];
  const int own = own_offsets[(found.sequence + 1) * own_step] - own_base, first = (slot - found.first_slot) * kOwn;
  if (first >= own) return;
  int other_base = other_offsets[found.sequence * other_step];
  int others = other_offsets[(found.sequence + 1) * other_step] - other_base;
  const bool lost = other_base < 0 || others < 0 || other_base > other_total - others;
  if (lost) other_base = others = 0;
  const int queries = kOfKeys ? others : own, keys = kOfKeys ? own : others;
  const int shift = call.bottom_right ? keys - queries : 0;

  // key - query - shift lies from -left to right: rows of the other side that any row here sees
  int begin = kOfKeys ? first - shift - call.right : first + shift - call.left;
  int end = kOfKeys ? first + kOwn - shift + call.left : first + kOwn + shift + call.right;
  begin = max(begin, 0) / kOther * kOther, end = min(max(end, 0), others);

  T* own_one = reinterpret_cast<T*>(shared);
  T* own_two = own_one + kOwn * kDim;
  T* ring = own_two + kOwn * kDim;
  const int members = kOfKeys ? call.group : 1, kv_head = kOfKeys ? head : head / call.group;
  const Side& one = kOfKeys ? call.k : call.q;  // scores are products of `one` and its other side
  const Side& two = kOfKeys ? call.v : call.dout;
  const Side& other_one = kOfKeys ? call.q : call.k;
  const Side& other_two = kOfKeys ? call.dout : call.v;
  fetch<T, kDim, kOwn>(own_one, one, own_base, head, first, own, call.head_dim);
  fetch<T, kDim, kOwn>(own_two, two, own_base, head, first, own, call.value_dim);
  const int steps = end > begin ? (end - begin + kOther - 1) / kOther : 0, all = steps * members;
  const auto advance = [&](int step) {
    if (step < all) {
      const int other_head = kOfKeys ? kv_head * call.group + step / steps : kv_head,
                at = begin + step % steps * kOther;
      T* target = ring + step % 2 * 2 * kOther * kDim;
      fetch<T, kDim, kOther>(target, other_one, other_base, other_head, at, others, call.head_dim);
      fetch<T, kDim, kOther>(target + kOther * kDim, other_two, other_base, other_head, at, others, call.value_dim);
      if (kOfKeys && threadIdx.x < kOther) {
        const int64_t line = other_base + at + threadIdx.x;
        const bool there = at + static_cast<int>(threadIdx.x) < others;
        const float level = there ? call.lse[other_head * call.lse_h + line * call.lse_n] : INFINITY;
        levels[step % 2][threadIdx.x] = level == -INFINITY ? INFINITY : level * kLog2E;
        means[step % 2][threadIdx.x] =
            there ? call.middle[static_cast<int64_t>(other_head) * call.total_q + line] : 0.0f;
      }
    }
    commit_copies();
  };
  advance(0);

  float level[2] = {INFINITY, INFINITY}, mean[2] = {0.0f, 0.0f};
  if (!kOfKeys) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = first + warp * 16 + lane / 4 + 8 * half;
      if (row < own) {
        const int64_t line = own_base + row;
        const float found_level = call.lse[head * call.lse_h + line * call.lse_n];
        level[half] = found_level == -INFINITY ? INFINITY : found_level * kLog2E;
        mean[half] = call.middle[static_cast<int64_t>(head) * call.total_q + line];
      }
    }
  }
  float of_one[kDim / 8][4] = {}, of_two[kOfKeys ? kDim / 8 : 1][4] = {};
  for (int step = 0; step < all; ++step) {
    advance(step + 1);
    wait_for_copies<1>();
    __syncthreads();
    const T* ones = ring + step % 2 * 2 * kOther * kDim;
    const T* twos = ones + kOther * kDim;
    const int at = begin + step % steps * kOther;
#pragma unroll
    for (int part = 0; part < kOther; part += 16) {
      float s[2][4] = {}, p[2][4] = {};
#pragma unroll
      for (int i = 0; i < kDim / 16; ++i) {
        Pair rows[4], columns[4];
        load_matrices(rows, own_one + place<kDim>(warp * 16 + lane % 16, 2 * i + lane / 16));
        load_matrices(columns, ones + place<kDim>(part + lane / 16 * 8 + lane % 8, 2 * i + lane / 8 % 2));
        multiply_matrices<T>(s[0], rows, {columns[0], columns[1]});
        multiply_matrices<T>(s[1], rows, {columns[2], columns[3]});
        load_matrices(rows, own_two + place<kDim>(warp * 16 + lane % 16, 2 * i + lane / 16));
        load_matrices(columns, twos + place<kDim>(part + lane / 16 * 8 + lane % 8, 2 * i + lane / 8 % 2));
        multiply_matrices<T>(p[0], rows, {columns[0], columns[1]});
        multiply_matrices<T>(p[1], rows, {columns[2], columns[3]});
      }
#pragma unroll
      for (int n = 0; n < 2; ++n)
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const int mine = first + warp * 16 + lane / 4 + 8 * (e / 2), place_of = part + n * 8 + lane % 4 * 2 + e % 2;
          const int theirs = at + place_of, key = kOfKeys ? mine : theirs, query = kOfKeys ? theirs : mine;
          const float of_row = kOfKeys ? levels[step % 2][place_of] : level[e / 2];
          const float of_mean = kOfKeys ? means[step % 2][place_of] : mean[e / 2];
          float score = s[n][e] * call.scale, bent = 0.0f;
          if (call.cap > 0.0f) bent = tanhf(score * call.inverse_cap), score = call.cap * bent;
          const int distance = key - query - shift;
          const bool seen = key < keys && query < queries && distance >= -call.left && distance <= call.right;
          const float weight = seen ? exp2f(score * kLog2E - of_row) : 0.0f;
          s[n][e] = weight;
          p[n][e] = weight * (p[n][e] - of_mean) * (1.0f - bent * bent);
        }
      const Pair slopes[4] = {packed<T>(p[0][0], p[0][1]), packed<T>(p[0][2], p[0][3]), packed<T>(p[1][0], p[1][1]),
                              packed<T>(p[1][2], p[1][3])};
      const Pair weights[4] = {packed<T>(s[0][0], s[0][1]), packed<T>(s[0][2], s[0][3]), packed<T>(s[1][0], s[1][1]),
                               packed<T>(s[1][2], s[1][3])};
#pragma unroll
      for (int n = 0; n < kDim / 16; ++n) {
        Pair columns[4];
        load_matrices_transposed(columns, ones + place<kDim>(part + lane / 8 % 2 * 8 + lane % 8, 2 * n + lane / 16));
        multiply_matrices<T>(of_one[2 * n], slopes, {columns[0], columns[1]});
        multiply_matrices<T>(of_one[2 * n + 1], slopes, {columns[2], columns[3]});
        if constexpr (kOfKeys) {
          load_matrices_transposed(columns, twos + place<kDim>(part + lane / 8 % 2 * 8 + lane % 8, 2 * n + lane / 16));
          multiply_matrices<T>(of_two[2 * n], weights, {columns[0], columns[1]});
          multiply_matrices<T>(of_two[2 * n + 1], weights, {columns[2], columns[3]});
        }
      }
    }
    __syncthreads();
  }
  const float nothing = lost ? NAN : 0.0f;
  const int own_heads = kOfKeys ? kv_heads : call.heads;
  put<T, kDim>(kOfKeys ? call.dk : call.dq, of_one, call.scale, nothing, own_base, first + warp * 16, own, head,
               own_heads, call.head_dim);
  if constexpr (kOfKeys)
    put<T, kDim>(call.dv, of_two, 1.0f, nothing, own_base, first + warp * 16, own, head, own_heads, call.value_dim);
}

template <typename T, int kDim>
void launch(const Call& call, cudaStream_t stream) {
  constexpr int kShared = (2 * kOwn + 4 * kOther) * kDim * 2;
  const auto slots = [&](int rows) { return static_cast<unsigned>(rows / kOwn + std::min(call.sequences, rows)); };
  const unsigned heads = static_cast<unsigned>(call.heads);
  if (call.total_q > 0) {
    const dim3 lines(static_cast<unsigned>(ceil_div(call.total_q, kWarps)), heads);
    OPFORGE_LAUNCH((middles<T>), lines, kThreads, 0, stream, call);
    OPFORGE_LAUNCH((gradients<T, kDim, false>), dim3(slots(call.total_q), heads), kThreads, kShared, stream, call);
  }
  if (call.total_k > 0)
    OPFORGE_LAUNCH((gradients<T, kDim, true>), dim3(slots(call.total_k), heads / call.group), kThreads, kShared, stream,
                   call);
}

}  // namespace packed_gradients
}  // namespace attention
}  // namespace opforge

#endif  // OPFORGE_ATTENTION_VARLEN_BACKWARD_H_
