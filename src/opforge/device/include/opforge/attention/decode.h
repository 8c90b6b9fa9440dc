// opforge/attention/decode.h - few queries against a paged cache on the GPU: warps with rings of their own, then a sum.
//
// A block has one key head of one sequence, and a part of its keys. Its warps know nothing of each other until the end:
// each copies 16 keys and values at a time into shared memory of its own (cp.async, 16 bytes a thread, several steps
// ahead), multiplies them with the rows of the group (mma.m16n8k16) and keeps an online softmax. So the loop has no
// barrier of the block. Then the warps' sums are added up, and a second kernel adds up the parts. Pages of any size: a
// lane looks up the page of one key a step ahead of the copy that needs it.
#ifndef OPFORGE_ATTENTION_DECODE_H_
#define OPFORGE_ATTENTION_DECODE_H_

#include <algorithm>

#include "opforge/arch/dependent_launch.h"
#include "opforge/arch/scratch.h"
#include "opforge/arch/tensor_core.h"
#include "opforge/attention/decode_checks.h"

namespace opforge {
namespace attention {
namespace decode {

constexpr int kWarps = 4, kThreads = 32 * kWarps, kRows = 16, kKeys = 16;
constexpr int kUnit = kWarps * kKeys;           // keys of a part are a multiple of it
constexpr int kLeast = 128, kMostSplits = 128;  // keys of a part at the least, parts of a sequence at the most
constexpr int kInvariantLeast = 256, kInvariantSplits = 64;  // the same where a sequence's own length alone may decide
constexpr float kLog2E = 1.4426950408889634f;
constexpr int kRingBytes = 96 * 1024;  // two blocks on a multiprocessor with 227 KB

/// Stages of a warp's ring: as many as fit, from 2 to 8.
constexpr int stages_of(int dims, int wanted) {
  const int fit = kRingBytes / (kUnit * dims * 2);
  return wanted ? wanted : fit < 2 ? 2 : fit > 8 ? 8 : fit;
}

struct Call {
  const void *q, *k, *v;
  const int *table, *lengths;
  void* out;
  float *lse, *sums, *stats;
  int64_t q_b, q_h, q_n, q_d, k_p, k_n, k_h, k_d, v_p, v_n, v_h, v_d, table_b, table_n, lengths_b;
  int kv_heads, group, queries, pages, page, room, head_dim, value_dim, left, splits, least;
  float factor, cap;  // of products: to units of log2, or to the cap's; the cap in units of log2, 0 for none
  bool vectors_k, vectors_v;
};

/// What a sequence's queries see, and how long its parts are. A length that its row of the table has no room for is
/// lost: nothing is read, and its rows are NaN.
struct Span {
  int length, begin, part, used;
  bool lost;

  __device__ __forceinline__ Span(const Call& call, int b) {
    length = call.lengths[b * call.lengths_b];
    lost = length < 0 || length > call.room;
    length = lost ? 0 : length;
    begin = min(max(length - call.queries - call.left, 0), length);
    const int span = length - begin;
    part = max(call.least, ((span + call.splits - 1) / call.splits + kUnit - 1) / kUnit * kUnit);
    used = (span + part - 1) / part;
  }
};

// Element (row, column) of a tile of kDim columns in shared memory: 16-byte pieces of a row change places, so that
// ldmatrix finds eight rows in eight different banks.
template <int kDim>
__device__ __forceinline__ int place(int row, int piece) {
  return row * kDim + ((piece ^ (row & 7)) << 3);
}

// Starts copying a step of keys or values. Lane l knows where key l of the step lies: its page, or -1 for none, and its
// row there.
template <typename T, int kDim>
__device__ __forceinline__ void fetch(T* target, const T* source, int entry, int slot, int64_t stride_p,
                                      int64_t stride_n, int64_t stride_d, int dim, bool vectors, int lane) {
  constexpr int kPieces = kDim / 8;
#pragma unroll
  for (int i = 0; i < kKeys * kPieces / 32; ++i) {
    const int at = lane + 32 * i, row = at / kPieces, piece = at % kPieces;
    const int page = __shfl_sync(kFullMask, entry, row), line = __shfl_sync(kFullMask, slot, row);
    const T* from = source + (page < 0 ? 0 : page * stride_p + line * stride_n + piece * 8 * stride_d);
    const int left = page < 0 ? 0 : max(0, min(8, dim - piece * 8));
    T* to = target + place<kDim>(row, piece);
    if (vectors) {
      start_copy(to, left > 0 ? from : source, left * static_cast<int>(sizeof(T)));
    } else {
#pragma unroll 1
      for (int j = 0; j < 8; ++j) to[j] = j < left ? from[j * stride_d] : store_from_float<T>(0.0f);
    }
  }
}

__device__ __forceinline__ float over_four(float v, bool largest) {
#pragma unroll
  for (int o = 1; o < 4; o *= 2) {
    const float other = __shfl_xor_sync(kFullMask, v, o);
    v = largest ? fmaxf(v, other) : v + other;
  }
  return v;
}

template <typename T>
__device__ __forceinline__ Pair packed(float low, float high) {
  const T both[2] = {store_from_float<T>(low), store_from_float<T>(high)};
  Pair pair;
  memcpy(&pair, both, sizeof(pair));
  return pair;
}

template <typename T, int kHead, int kValue, int kStages>
__global__ void __launch_bounds__(kThreads) parts(Call call) {
  OPFORGE_DYNAMIC_SHARED(uint4, shared);
  __shared__ float peaks[kWarps][kRows], totals[kWarps][kRows];
  constexpr int kStage = kKeys * (kHead + kValue);  // elements
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int b = blockIdx.x / call.kv_heads, h = blockIdx.x % call.kv_heads, split = blockIdx.y,
            row0 = blockIdx.z * kRows;
  let_dependents_start();
  const Span span(call, b);
  const bool alone = call.splits == 1;
  if (!alone && split >= span.used) return;
  const int first = span.begin + split * span.part, last = min(first + span.part, span.length);

  T* ring = reinterpret_cast<T*>(shared) + warp * kStages * kStage;
  const T* k = static_cast<const T*>(call.k) + h * call.k_h;
  const T* v = static_cast<const T*>(call.v) + h * call.v_h;
  const int* table = call.table + b * call.table_b;
  int entry = -1, slot = 0;
  bool astray = span.lost;  // an entry that is seen names no page: nothing is read for it, and its rows are NaN
  // looks up the page of key `lane % 16` of a step
  const auto look_up = [&](int key) {
    const int page = key / call.page;
    slot = key - page * call.page;
    entry = key < last ? __ldg(table + page * call.table_n) : -1;
    if (key < last && static_cast<unsigned>(entry) >= static_cast<unsigned>(call.pages)) astray = true, entry = -1;
  };
  const int start = first + warp * kKeys;
  int ahead = start + lane % kKeys;  // the key that is looked up next
  look_up(ahead);
  const auto advance = [&](int stage) {
    T* target = ring + stage * kStage;
    fetch<T, kHead>(target, k, entry, slot, call.k_p, call.k_n, call.k_d, call.head_dim, call.vectors_k, lane);
    fetch<T, kValue>(target + kKeys * kHead, v, entry, slot, call.v_p, call.v_n, call.v_d, call.value_dim,
                     call.vectors_v, lane);
    commit_copies();
    ahead += kUnit;
    look_up(ahead);
  };
#pragma unroll
  for (int s = 0; s < kStages - 1; ++s) advance(s);

  // rows of the group: this lane has elements of rows lane / 4 and lane / 4 + 8
  Pair rows[kHead / 16][4];
  int from[2], to[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = row0 + lane / 4 + 8 * half, query = row % call.queries;
    const bool real = row < call.group * call.queries;
    const T* q = static_cast<const T*>(call.q) + b * call.q_b + (h * call.group + row / call.queries) * call.q_h +
                 query * call.q_n;
    const int position = span.length - call.queries + query;
    from[half] = position - call.left;
    to[half] = real ? min(position, last - 1) : -1;
#pragma unroll
    for (int i = 0; i < kHead / 16; ++i)
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const int d = i * 16 + j * 8 + lane % 4 * 2;
        T both[2];
#pragma unroll
        for (int e = 0; e < 2; ++e)
          both[e] = real && d + e < call.head_dim ? q[(d + e) * call.q_d] : store_from_float<T>(0.0f);
        memcpy(&rows[i][2 * j + half], both, sizeof(Pair));
      }
  }

  float acc[kValue / 8][4] = {}, peak[2] = {-INFINITY, -INFINITY}, total[2] = {0.0f, 0.0f};
  int stage = 0;
  for (int key = start; key < last; key += kUnit) {
    wait_for_copies<kStages - 2>();
    // every lane's copies have arrived, and nobody reads the stage that is filled next any more
    __syncwarp();
    advance(stage == 0 ? kStages - 1 : stage - 1);
    const T* keys = ring + stage * kStage;
    const T* values = keys + kKeys * kHead;
    float s[2][4] = {};
#pragma unroll
    for (int i = 0; i < kHead / 16; ++i) {
      Pair found[4];
      load_matrices(found, keys + place<kHead>(lane / 16 * 8 + lane % 8, 2 * i + lane / 8 % 2));
      multiply_matrices<T>(s[0], rows[i], {found[0], found[1]});
      multiply_matrices<T>(s[1], rows[i], {found[2], found[3]});
    }
    float higher[2] = {peak[0], peak[1]};
#pragma unroll
    for (int n = 0; n < 2; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int at = key + n * 8 + lane % 4 * 2 + e % 2, half = e / 2;
        float score = s[n][e] * call.factor;
        if (call.cap != 0.0f) score = call.cap * tanhf(score);
        s[n][e] = at >= from[half] && at <= to[half] ? score : -INFINITY;
        higher[half] = fmaxf(higher[half], s[n][e]);
      }
    float shrink[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      higher[half] = over_four(higher[half], true);
      // a row that has seen nothing yet keeps -inf: its weights are exp2(-inf - 0) = 0, and no NaN
      const float base = higher[half] == -INFINITY ? 0.0f : higher[half];
      shrink[half] = exp2f(peak[half] - base);
      total[half] *= shrink[half];
#pragma unroll
      for (int n = 0; n < 2; ++n)
#pragma unroll
        for (int e = 2 * half; e < 2 * half + 2; ++e) {
          s[n][e] = exp2f(s[n][e] - base);
          total[half] += s[n][e];
        }
    }
    if (__any_sync(kFullMask, higher[0] != peak[0] || higher[1] != peak[1])) {
#pragma unroll
      for (int n = 0; n < kValue / 8; ++n)
#pragma unroll
        for (int e = 0; e < 4; ++e) acc[n][e] *= shrink[e / 2];
    }
    peak[0] = higher[0], peak[1] = higher[1];
    const Pair weights[4] = {packed<T>(s[0][0], s[0][1]), packed<T>(s[0][2], s[0][3]), packed<T>(s[1][0], s[1][1]),
                             packed<T>(s[1][2], s[1][3])};
#pragma unroll
    for (int n = 0; n < kValue / 16; ++n) {
      Pair found[4];
      load_matrices_transposed(found, values + place<kValue>(lane / 8 % 2 * 8 + lane % 8, 2 * n + lane / 16));
      multiply_matrices<T>(acc[2 * n], weights, {found[0], found[1]});
      multiply_matrices<T>(acc[2 * n + 1], weights, {found[2], found[3]});
    }
    if (++stage == kStages) stage = 0;
  }

  // the warps' sums, each brought to the largest maximum, meet in shared memory
  wait_for_copies<0>();
  if (__any_sync(kFullMask, astray)) total[0] = total[1] = NAN;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    total[half] = over_four(total[half], false);
    if (lane % 4 == 0) {
      peaks[warp][lane / 4 + 8 * half] = peak[half];
      totals[warp][lane / 4 + 8 * half] = total[half];
    }
  }
  __syncthreads();
  float* meeting = reinterpret_cast<float*>(shared);  // [kWarps][kRows][kValue]
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = lane / 4 + 8 * half;
    float top = -INFINITY;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) top = fmaxf(top, peaks[w][row]);
    const float weight = peak[half] == -INFINITY ? 0.0f : exp2f(peak[half] - top);
#pragma unroll
    for (int n = 0; n < kValue / 8; ++n) {
      float* at = meeting + (warp * kRows + row) * kValue + n * 8 + lane % 4 * 2;
      at[0] = acc[n][2 * half] * weight;
      at[1] = acc[n][2 * half + 1] * weight;
    }
  }
  __syncthreads();
  const int real = min(kRows, call.group * call.queries - row0);
  const int64_t line0 = static_cast<int64_t>(blockIdx.x) * call.group * call.queries + row0;
  for (int at = threadIdx.x; at < real * kValue; at += kThreads) {
    const int row = at / kValue, e = at % kValue;
    if (e >= call.value_dim) continue;
    float top = -INFINITY, sum = 0.0f, whole = 0.0f;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) top = fmaxf(top, peaks[w][row]);
#pragma unroll
    for (int w = 0; w < kWarps; ++w) {
      sum += meeting[(w * kRows + row) * kValue + e];
      whole += totals[w][row] * (peaks[w][row] == -INFINITY ? 0.0f : exp2f(peaks[w][row] - top));
    }
    const int64_t line = line0 + row;
    if (alone) {
      static_cast<T*>(call.out)[line * call.value_dim + e] = store_from_float<T>(whole == 0.0f ? 0.0f : sum / whole);
      if (e == 0) call.lse[line] = whole == 0.0f ? -INFINITY : (top + log2f(whole)) / kLog2E;
    } else {
      call.sums[(line * call.splits + split) * call.value_dim + e] = sum;
      if (e == 0) {
        call.stats[(line * call.splits + split) * 2] = top;
        call.stats[(line * call.splits + split) * 2 + 1] = whole;
      }
    }
  }
}

/// One row of queries a block: the parts that its sequence has, brought to one maximum and added up in their order.
template <typename T>
__global__ void __launch_bounds__(kThreads) together(Call call) {
  __shared__ float weights[kMostSplits];
  __shared__ float kept[2];
  await_prerequisites();
  const int64_t line = blockIdx.x;
  const int b = static_cast<int>(line / (static_cast<int64_t>(call.kv_heads) * call.group * call.queries));
  const Span span(call, b);
  const float* stats = call.stats + line * call.splits * 2;
  if (threadIdx.x < 32) {
    float top = -INFINITY, whole = span.lost ? NAN : 0.0f;
    for (int s = threadIdx.x; s < span.used; s += 32) top = fmaxf(top, stats[2 * s]);
    for (int o = 16; o > 0; o /= 2) top = fmaxf(top, __shfl_xor_sync(kFullMask, top, o));
    for (int s = threadIdx.x; s < span.used; s += 32) {
      weights[s] = stats[2 * s] == -INFINITY ? 0.0f : exp2f(stats[2 * s] - top);
      whole += stats[2 * s + 1] * weights[s];
    }
    for (int o = 16; o > 0; o /= 2) whole += __shfl_xor_sync(kFullMask, whole, o);
    if (threadIdx.x == 0) {
      kept[0] = whole == 0.0f ? 0.0f : 1.0f / whole;
      call.lse[line] = whole == 0.0f ? -INFINITY : (top + log2f(whole)) / kLog2E;
    }
  }
  __syncthreads();
  const float* sums = call.sums + line * call.splits * call.value_dim;
  for (int e = threadIdx.x; e < call.value_dim; e += kThreads) {
    float sum = 0.0f;
#pragma unroll 8
    for (int s = 0; s < span.used; ++s) sum += sums[static_cast<int64_t>(s) * call.value_dim + e] * weights[s];
    static_cast<T*>(call.out)[line * call.value_dim + e] = store_from_float<T>(sum * kept[0]);
  }
}

inline int processors() {
#ifdef OPFORGE_EMULATE
  return 2;
#else
  int device = 0, count = 0;
  check_cuda(cudaGetDevice(&device), "cudaGetDevice");
  check_cuda(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device), "cudaDevAttrMultiProcessorCount");
  return count;
#endif
}

/// Parts of a sequence of up to `keys` keys, where `blocks` blocks have the same part and `resident` run at once: so
/// many that the last round of blocks is full, two rounds where parts keep 1024 keys.
inline int64_t splits_for(int64_t keys, int64_t blocks, int64_t resident) {
  const int64_t most = std::min<int64_t>(kMostSplits, ceil_div(keys, kLeast));
  const int64_t least = std::min(ceil_div(2 * resident, blocks), ceil_div(keys, 1024));
  const auto full = [&](int64_t splits) {
    const double rounds = static_cast<double>(blocks * splits) / resident;
    return rounds / std::ceil(rounds);
  };
  double best = 0.0;
  for (int64_t s = std::min(std::max<int64_t>(least, 1), most); s <= most; ++s) best = std::max(best, full(s));
  for (int64_t s = std::min(std::max<int64_t>(least, 1), most); s <= most; ++s)
    if (full(s) >= 0.92 * best) return s;
  return 1;
}

template <typename T, int kHead, int kValue, int kWanted>
void launch(Call call, const DecodeSizes& sizes, int64_t splits, bool invariant, cudaStream_t stream) {
  constexpr int kStages = stages_of(kHead + kValue, kWanted);
  constexpr int kShared = std::max(kWarps * kStages * kKeys * (kHead + kValue) * 2, kWarps * kRows * kValue * 4);
  const int64_t tiles = ceil_div(sizes.rows(), kRows), lines = sizes.batch * sizes.kv_heads * sizes.rows();
  int64_t room = splits;
  if (invariant) {
    // parts are those of 64 splits, whatever the room: the grid alone follows from it
    splits = kInvariantSplits;
    room = std::min<int64_t>(splits, ceil_div(sizes.most_keys(), kInvariantLeast));
  } else if (splits == 0) {
    const int64_t at_once = std::max<int64_t>(1, 227 * 1024 / (kShared + 2048));
    splits = room = splits_for(sizes.most_keys(), sizes.batch * sizes.kv_heads * tiles,
                               processors() * std::min<int64_t>(at_once, 4));
  }
  call.splits = static_cast<int>(splits);
  call.least = invariant ? kInvariantLeast : kUnit;
  const int64_t floats = splits == 1 ? 0 : lines * splits * (sizes.value_dim + 2);
  const Scratch scratch(floats * sizeof(float), stream);
  call.stats = static_cast<float*>(scratch.data());
  call.sums = call.stats + lines * splits * 2;
  const dim3 grid(static_cast<unsigned>(sizes.batch * sizes.kv_heads), static_cast<unsigned>(room),
                  static_cast<unsigned>(tiles));
  OPFORGE_LAUNCH((parts<T, kHead, kValue, kStages>), grid, kThreads, kShared, stream, call);
  if (splits == 1) return;
#ifdef OPFORGE_EMULATE
  OPFORGE_LAUNCH((together<T>), static_cast<unsigned>(lines), kThreads, 0, stream, call);
#else
  launch_dependent(together<T>, dim3(static_cast<unsigned>(lines)), dim3(kThreads), stream, call);
#endif
}

/// Attention of q [batch, heads, queries, dim] against pages; head dimensions up to 256. splits 0: as many as the
/// device has room for.
template <typename T, int kStages>
void run(const TensorView& q, const TensorView& k, const TensorView& v, const TensorView& table,
         const TensorView& lengths, const TensorView& out, const TensorView& lse, double scale, int64_t window_left,
         double softcap, bool invariant, int64_t splits, cudaStream_t stream) {
  const DecodeSizes sizes = check_decode(q, k, v, table, lengths, out, lse, window_left);
  if (out.numel() == 0) return;
  OPFORGE_CHECK(sizes.head_dim <= 256 && sizes.value_dim <= 256, ValueError,
                "head dimensions must be 256 at the most; use another implementation");
  const auto vectors = [&](const TensorView& pages) {
    return pages.stride(3) == 1 && pages.stride(0) % 8 == 0 && pages.stride(1) % 8 == 0 && pages.stride(2) % 8 == 0 &&
           reinterpret_cast<uintptr_t>(pages.data_ptr()) % 16 == 0;
  };
  const float factor = decode_scale(scale, sizes.head_dim);
  Call call{};
  call.q = q.data_ptr(), call.k = k.data_ptr(), call.v = v.data_ptr(), call.out = out.data_ptr();
  call.table = data<const int>(table), call.lengths = data<const int>(lengths), call.lse = data<float>(lse);
  call.q_b = q.stride(0), call.q_h = q.stride(1), call.q_n = q.stride(2), call.q_d = q.stride(3);
  call.k_p = k.stride(0), call.k_n = k.stride(1), call.k_h = k.stride(2), call.k_d = k.stride(3);
  call.v_p = v.stride(0), call.v_n = v.stride(1), call.v_h = v.stride(2), call.v_d = v.stride(3);
  call.table_b = table.stride(0), call.table_n = table.stride(1), call.lengths_b = lengths.stride(0);
  call.kv_heads = static_cast<int>(sizes.kv_heads), call.group = static_cast<int>(sizes.group),
  call.queries = static_cast<int>(sizes.queries);
  call.pages = static_cast<int>(k.size(0)), call.room = static_cast<int>(sizes.max_pages * sizes.page);
  call.page = static_cast<int>(sizes.page), call.head_dim = static_cast<int>(sizes.head_dim),
  call.value_dim = static_cast<int>(sizes.value_dim);
  call.left = static_cast<int>(sizes.left);
  call.factor = softcap > 0 ? factor / static_cast<float>(softcap) : factor * kLog2E;
  call.cap = softcap > 0 ? static_cast<float>(softcap) * kLog2E : 0.0f;
  call.vectors_k = vectors(k), call.vectors_v = vectors(v);
  if (std::max(sizes.head_dim, sizes.value_dim) <= 64)
    return launch<T, 64, 64, kStages>(call, sizes, splits, invariant, stream);
  if (std::max(sizes.head_dim, sizes.value_dim) <= 128)
    return launch<T, 128, 128, kStages>(call, sizes, splits, invariant, stream);
  if (sizes.head_dim <= 192 && sizes.value_dim <= 128)
    return launch<T, 192, 128, kStages>(call, sizes, splits, invariant, stream);
  return launch<T, 256, 256, kStages>(call, sizes, splits, invariant, stream);
}

}  // namespace decode
}  // namespace attention
}  // namespace opforge

#endif  // OPFORGE_ATTENTION_DECODE_H_
