// opforge/attention/forward.h - attention's forward pass on sm_90a: a warpgroup that loads by TMA, two or three that multiply in turns.
//
// source    the order of products and softmax follows FlashAttention-3 (Shah et al., 2024), section 3
#ifndef OPFORGE_ATTENTION_FORWARD_H_
#define OPFORGE_ATTENTION_FORWARD_H_

#include "opforge/attention/register_product.h"

namespace opforge {
namespace attention {

/// Tiles of one kernel: columns of q, k and v as they lie in shared memory (64 or 128; what a matrix lacks is read as zero), warpgroups that
/// multiply (64 rows of q each), keys of a block, blocks of k and of v on their way, whether the warpgroups multiply in turns.
template <typename Element_, int kDim_, int kGroups_, int kBlockN_, int kStages_, bool kTurns_>
struct ForwardShape {
  using Element = Element_;
  static constexpr int kDim = kDim_, kGroups = kGroups_, kBlockN = kBlockN_, kStages = kStages_;
  static constexpr bool kTurns = kTurns_;
  static constexpr int kBlockM = 64 * kGroups, kThreads = 128 * (kGroups + 1), kBoxes = kDim / hopper::kBox;
  static constexpr int kQueryBytes = kBlockM * kDim * 2, kBlockBytes = kBlockN * kDim * 2;
  static constexpr int kBytes = kQueryBytes + 2 * kStages * kBlockBytes + 1024 + 256;
  static_assert(kDim % hopper::kBox == 0 && kBlockN % 16 == 0 && kBlockN <= 256 && kBytes <= 232448, "boxes of 64 columns that fit shared memory");
};

/// What the kernel is told beside the maps. Key j is seen by query i iff i + low <= j < i + high and j < keys.
struct ForwardArguments {
  int queries, keys, query_heads_all, group, tiles, tiles_of_head, heads_together;
  int low, high;
  bool longest_first;
  float scale;
  float* lse;
};

struct ForwardMaps {
  CUtensorMap q, k, v, out;
};

// A tile of queries: its first row, the head among all of the batch, and the blocks of keys that it sees.
struct Tile {
  int row0, head, first, last;  // blocks first..last - 1
};

// `heads_together` heads, whose keys and values fit the second-level cache, go side by side; with a causal mask the long rows of all of them
// begin first.
template <typename S>
__device__ __forceinline__ Tile tile_at(const ForwardArguments& arguments, int number) {
  const int section = arguments.heads_together * arguments.tiles_of_head, head0 = number / section * arguments.heads_together;
  const int heads = min(arguments.heads_together, arguments.query_heads_all - head0), within = number % section;
  Tile tile;
  int block;
  if (arguments.longest_first) {
    block = arguments.tiles_of_head - 1 - within / heads;
    tile.head = head0 + within % heads;
  } else {
    block = within % arguments.tiles_of_head;
    tile.head = head0 + within / arguments.tiles_of_head;
  }
  tile.row0 = block * S::kBlockM;
  const int last_row = min(tile.row0 + S::kBlockM, arguments.queries) - 1;
  const int from = max(0, tile.row0 + arguments.low), to = min(arguments.keys, last_row + arguments.high);
  tile.first = from / S::kBlockN;
  tile.last = to <= from ? tile.first : (to + S::kBlockN - 1) / S::kBlockN;
  return tile;
}

template <int kStages>
struct Ring {
  int slot = 0;
  uint32_t phase = 0;
  __device__ __forceinline__ void advance() {
    if (++slot == kStages) {
      slot = 0;
      phase ^= 1;
    }
  }
};

template <typename S>
struct Barriers {
  hopper::Barrier q_full, q_empty, k_full[S::kStages], k_empty[S::kStages], v_full[S::kStages], v_empty[S::kStages];
};

// One thread starts every copy: q, then k of a block before v of the block above it, in the order in which they are wanted.
template <typename S>
__device__ __forceinline__ void load_all(const ForwardMaps& maps, const ForwardArguments& arguments, unsigned char* tiles, Barriers<S>& barriers) {
  Ring<S::kStages> k, v;
  uint32_t q_phase = 0;
  unsigned char* blocks = tiles + S::kQueryBytes;
  const auto load = [&](const CUtensorMap* map, Ring<S::kStages>& ring, hopper::Barrier* full, hopper::Barrier* empty, unsigned char* first, int block, int head) {
    hopper::wait(&empty[ring.slot], ring.phase ^ 1);
    hopper::arrive_and_expect_bytes(&full[ring.slot], S::kBlockBytes);
#pragma unroll
    for (int box = 0; box < S::kBoxes; ++box)
      hopper::start_box(first + ring.slot * S::kBlockBytes + box * S::kBlockN * 128, map, box * hopper::kBox, block * S::kBlockN, head, &full[ring.slot]);
    ring.advance();
  };
  for (int number = blockIdx.x; number < arguments.tiles; number += gridDim.x) {
    const Tile tile = tile_at<S>(arguments, number);
    if (tile.first == tile.last) continue;
    const int head = tile.head / arguments.group;
    hopper::wait(&barriers.q_empty, q_phase ^ 1);
    hopper::arrive_and_expect_bytes(&barriers.q_full, S::kQueryBytes);
#pragma unroll
    for (int box = 0; box < S::kBoxes; ++box)
      hopper::start_box(tiles + box * S::kBlockM * 128, &maps.q, box * hopper::kBox, tile.row0, tile.head, &barriers.q_full);
    q_phase ^= 1;
    for (int block = tile.last - 1; block >= tile.first; --block) {
      load(&maps.k, k, barriers.k_full, barriers.k_empty, blocks, block, head);
      if (block < tile.last - 1) load(&maps.v, v, barriers.v_full, barriers.v_empty, blocks + S::kStages * S::kBlockBytes, block + 1, head);
    }
    load(&maps.v, v, barriers.v_full, barriers.v_empty, blocks + S::kStages * S::kBlockBytes, tile.first, head);
  }
}

__device__ __forceinline__ float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

template <typename T>
__device__ __forceinline__ Pair pack(float low, float high) {
  Pair pair;
  if constexpr (std::is_same_v<T, bfloat16_t>) {
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  } else {
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  }
  return pair;
}

// The two rows that a thread shares with three others: their maxima of raw scores and their sums of exponentials.
struct Rows {
  float top[2], sum[2];
};

__device__ __forceinline__ float quad_max(float x) {
  x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 1));
  return fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 2));
}
__device__ __forceinline__ float quad_sum(float x) {
  x += __shfl_xor_sync(0xffffffffu, x, 1);
  return x + __shfl_xor_sync(0xffffffffu, x, 2);
}

// Scores that a row does not see become -inf. `row` is the first of the thread's two rows, `column` its first.
template <int count>
__device__ __forceinline__ void mask(float (&scores)[count], int row, int column, const ForwardArguments& arguments) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int low = row + half * 8 + arguments.low - column, high = min(arguments.keys, row + half * 8 + arguments.high) - column;
#pragma unroll
    for (int i = 0; i < count / 4; ++i) {
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const int at = i * 8 + j;
        if (at < low || at >= high) scores[i * 4 + half * 2 + j] = -INFINITY;
      }
    }
  }
}

// Scores become exponentials; `rescale` is what the earlier sums are worth under the new maxima.
template <bool kMasked, int count>
__device__ __forceinline__ void exponentiate(float (&scores)[count], Rows& rows, float (&rescale)[2], float scale) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float top = rows.top[half];
#pragma unroll
    for (int i = 0; i < count / 4; ++i) top = fmaxf(top, fmaxf(scores[i * 4 + half * 2], scores[i * 4 + half * 2 + 1]));
    top = quad_max(top);
    const float base = (kMasked && top == -INFINITY ? 0.0f : top) * scale;
    rescale[half] = exp2_fast(fmaf(rows.top[half], scale, -base));
    rows.top[half] = top;
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < count / 4; ++i) {
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        float& score = scores[i * 4 + half * 2 + j];
        score = exp2_fast(fmaf(score, scale, -base));
        sum += score;
      }
    }
    rows.sum[half] = fmaf(rows.sum[half], rescale[half], sum);
  }
}

// A warpgroup's 64 rows of every tile: while the products of P and V of a block run, those of Q and K of the next do, and its softmax.
template <typename S>
__device__ __forceinline__ void attend(const ForwardMaps& maps, const ForwardArguments& arguments, unsigned char* tiles, Barriers<S>& barriers, int own) {
  using T = typename S::Element;
  using Scores = hopper::Product<T, S::kBlockN, false, false>;
  using Values = RegisterProduct<T, S::kDim>;
  constexpr int kTurn = 1, kOwn = 1 + S::kGroups;  // named barriers: whose turn it is to multiply; a warpgroup alone
  const int thread = threadIdx.x % 128, lane = thread % 32;
  const uint32_t start = shared_address(tiles);
  const uint64_t q = hopper::operand(start + own * 64 * 128, 0, 1024);
  const uint64_t k0 = hopper::operand(start + S::kQueryBytes, 0, 1024);
  const uint64_t v0 = hopper::operand(start + S::kQueryBytes + S::kStages * S::kBlockBytes, S::kBlockN * 128, 1024);
  Ring<S::kStages> k, v;
  uint32_t q_phase = 0;
  float scores[S::kBlockN / 2], sums[S::kDim / 2], rescale[2];
  Pair weights[S::kBlockN / 4];
  const auto multiply_keys = [&] {
    const uint64_t at = k0 + static_cast<uint64_t>(k.slot * (S::kBlockBytes >> 4));
    hopper::hold(scores);
    hopper::fence_before_products();
#pragma unroll
    for (int i = 0; i < S::kDim / 16; ++i)
      Scores::run(scores, q + (i / 4 * S::kBlockM * 128 + i % 4 * 32 >> 4), at + (i / 4 * S::kBlockN * 128 + i % 4 * 32 >> 4), i > 0);
    hopper::commit_products();
  };
  const auto multiply_values = [&] {
    const uint64_t at = v0 + static_cast<uint64_t>(v.slot * (S::kBlockBytes >> 4));
#pragma unroll
    for (int i = 0; i < S::kBlockN / 16; ++i) Values::run(sums, weights + 4 * i, at + (i * 16 * 128 >> 4));
    hopper::commit_products();
  };
  const auto round_weights = [&] {
#pragma unroll
    for (int i = 0; i < S::kBlockN / 4; ++i) weights[i] = pack<T>(scores[2 * i], scores[2 * i + 1]);
  };
  const auto release = [&](hopper::Barrier* empty, Ring<S::kStages>& ring) {
    if (thread == 0) hopper::arrive(&empty[ring.slot]);
    ring.advance();
  };
  if (S::kTurns && own == S::kGroups - 1) hopper::arrive_at_named_barrier(kTurn, 256);
  for (int number = blockIdx.x; number < arguments.tiles; number += gridDim.x) {
    const Tile tile = tile_at<S>(arguments, number);
    const int row0 = tile.row0 + own * 64, row = row0 + thread / 32 * 16 + lane / 4, column = lane % 4 * 2;
    Rows rows{{-INFINITY, -INFINITY}, {0.0f, 0.0f}};
#pragma unroll
    for (float& sum : sums) sum = 0.0f;
    if (tile.first < tile.last) {
      // blocks below `clear_to` and from `clear_from` on are seen whole by every row of the tile
      const int last_row = tile.row0 + S::kBlockM - 1;
      const int clear_to = max(tile.first, min(tile.last - 1, min(arguments.keys, max(0, tile.row0 + arguments.high)) / S::kBlockN));
      const int clear_from = min(clear_to, (max(0, last_row + arguments.low) + S::kBlockN - 1) / S::kBlockN);
      hopper::wait(&barriers.q_full, q_phase);
      q_phase ^= 1;
      hopper::wait(&barriers.k_full[k.slot], k.phase);
      multiply_keys();
      hopper::wait_for_products<0>();
      hopper::hold(scores);
      release(barriers.k_empty, k);
      mask(scores, row, (tile.last - 1) * S::kBlockN + column, arguments);
      exponentiate<true>(scores, rows, rescale, arguments.scale);
      round_weights();
      const auto step = [&](int block, auto masked) {
        hopper::wait(&barriers.k_full[k.slot], k.phase);
        if (S::kTurns) hopper::named_barrier(kTurn + own, 256);
        multiply_keys();
        hopper::wait(&barriers.v_full[v.slot], v.phase);
        multiply_values();
        if (S::kTurns) hopper::arrive_at_named_barrier(kTurn + (own + 1 == S::kGroups ? 0 : own + 1), 256);
        hopper::wait_for_products<1>();
        hopper::hold(scores);
        release(barriers.k_empty, k);
        if constexpr (masked.value) mask(scores, row, block * S::kBlockN + column, arguments);
        exponentiate<masked.value>(scores, rows, rescale, arguments.scale);
        hopper::wait_for_products<0>();
        hopper::hold(sums);
        release(barriers.v_empty, v);
        round_weights();
#pragma unroll
        for (int i = 0; i < S::kDim / 2; ++i) sums[i] *= rescale[i / 2 % 2];
      };
      int block = tile.last - 2;
#pragma unroll 1
      for (; block >= clear_to; --block) step(block, std::true_type{});
#pragma unroll 1
      for (; block >= clear_from; --block) step(block, std::false_type{});
#pragma unroll 1
      for (; block >= tile.first; --block) step(block, std::true_type{});
      hopper::wait(&barriers.v_full[v.slot], v.phase);
      hopper::hold(sums);
      hopper::fence_before_products();
      multiply_values();
      hopper::wait_for_products<0>();
      hopper::hold(sums);
      release(barriers.v_empty, v);
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float sum = quad_sum(rows.sum[half]), inverse = sum > 0.0f ? 1.0f / sum : sum == 0.0f ? 0.0f : sum;
#pragma unroll
      for (int i = 0; i < S::kDim / 4; ++i) {
        sums[i / 2 * 4 + half * 2 + i % 2] *= inverse;
      }
      if (lane % 4 == 0 && row + half * 8 < arguments.queries)
        arguments.lse[static_cast<int64_t>(tile.head) * arguments.queries + row + half * 8] =
            sum == 0.0f ? -INFINITY : (rows.top[half] * arguments.scale + __log2f(sum)) * 0.693147180559945f;
    }
    // the rows of q that this warpgroup alone has read take its rows of out on their way
    hopper::named_barrier(kOwn + own, 128);
    if (tile.first == tile.last && thread == 0) hopper::wait_for_reads<0>();
    const int local = thread / 32 * 16 + lane % 16;
#pragma unroll
    for (int i = 0; i < S::kDim / 16; ++i) {
      const int box = i / 4, piece = (2 * (i % 4) + lane / 16) ^ (local % 8);
      hopper::store_matrices(tiles + box * S::kBlockM * 128 + own * 8192 + local * 128 + piece * 16, pack<T>(sums[i * 8], sums[i * 8 + 1]),
                             pack<T>(sums[i * 8 + 2], sums[i * 8 + 3]), pack<T>(sums[i * 8 + 4], sums[i * 8 + 5]),
                             pack<T>(sums[i * 8 + 6], sums[i * 8 + 7]));
    }
    hopper::fence_async_proxy();
    hopper::named_barrier(kOwn + own, 128);
    if (thread == 0) {
      if (row0 < arguments.queries) {
#pragma unroll
        for (int box = 0; box < S::kBoxes; ++box)
          hopper::start_store(&maps.out, box * hopper::kBox, row0, tile.head, tiles + box * S::kBlockM * 128 + own * 8192);
      }
      hopper::commit_stores();
      hopper::wait_for_reads<0>();
      if (tile.first < tile.last) hopper::arrive(&barriers.q_empty);
    }
  }
}

template <typename S>
__global__ void __launch_bounds__(S::kThreads, 1) forward_kernel(const __grid_constant__ ForwardMaps maps, const ForwardArguments arguments) {
  extern __shared__ unsigned char memory[];
  __shared__ Barriers<S> barriers;
  unsigned char* tiles = memory + (1024 - shared_address(memory) % 1024) % 1024;
  if (threadIdx.x == 0) {
    hopper::init_barrier(&barriers.q_full, 1);
    hopper::init_barrier(&barriers.q_empty, S::kGroups);
    for (int i = 0; i < S::kStages; ++i) {
      hopper::init_barrier(&barriers.k_full[i], 1);
      hopper::init_barrier(&barriers.v_full[i], 1);
      hopper::init_barrier(&barriers.k_empty[i], S::kGroups);
      hopper::init_barrier(&barriers.v_empty[i], S::kGroups);
    }
    hopper::fence_barrier_init();
  }
  __syncthreads();
  if (threadIdx.x < 128) {
    hopper::shrink_registers<S::kGroups == 2 ? 24 : 32>();
    if (threadIdx.x == 0) load_all<S>(maps, arguments, tiles, barriers);
  } else {
    hopper::grow_registers<S::kGroups == 2 ? 240 : 160>();
    attend<S>(maps, arguments, tiles, barriers, static_cast<int>(threadIdx.x) / 128 - 1);
  }
}

/// What a call of the forward pass is given: contiguous q, k, v, out and lse of `batch * heads` matrices, limits of the window that are -1 where
/// there is none, `offset` the key that query 0 stands at.
struct ForwardCall {
  const void *q, *k, *v;
  void* out;
  float* lse;
  int64_t matrices, group, queries, keys, head_dim, value_dim;
  double scale;
  bool causal;
  int64_t window_left, window_right, offset;
  bool persistent;
};

template <typename S>
void launch_forward(const ForwardCall& call, cudaStream_t stream) {
  using T = typename S::Element;
  const int64_t key_heads = call.matrices / call.group;
  const auto map_of = [&](const void* data, int64_t columns, int64_t rows, int64_t count, int box_rows) {
    return hopper::describe_matrices(data, hopper::kMapType<T>, columns, rows, columns, count, rows * columns, box_rows);
  };
  const ForwardMaps maps{map_of(call.q, call.head_dim, call.queries, call.matrices, S::kBlockM), map_of(call.k, call.head_dim, call.keys, key_heads, S::kBlockN),
                         map_of(call.v, call.value_dim, call.keys, key_heads, S::kBlockN), map_of(call.out, call.value_dim, call.queries, call.matrices, 64)};
  // limits beyond every key are as good as none, and keep sums of rows inside an int
  const int64_t far = call.queries + call.keys;
  const auto within = [&](int64_t limit) { return limit < 0 || limit > far ? far : limit; };
  const int64_t right = call.causal ? 0 : within(call.window_right), left = within(call.window_left);
  ForwardArguments arguments;
  arguments.queries = static_cast<int>(call.queries);
  arguments.keys = static_cast<int>(call.keys);
  arguments.query_heads_all = static_cast<int>(call.matrices);
  arguments.group = static_cast<int>(call.group);
  arguments.tiles_of_head = static_cast<int>((call.queries + S::kBlockM - 1) / S::kBlockM);
  const int64_t tiles = arguments.tiles_of_head * call.matrices;
  OPFORGE_CHECK(tiles < 2147483647 - 1024 && far < 1000000000, ValueError, "queries and keys are too many for 32-bit indices: ", call.queries, " and ", call.keys);
  arguments.tiles = static_cast<int>(tiles);
  arguments.low = static_cast<int>(call.offset - left);
  arguments.high = static_cast<int>(call.offset + (call.causal && call.window_right < 0 ? 0 : right) + 1);
  arguments.longest_first = call.causal;
  const int64_t head_bytes = call.keys * (call.head_dim + call.value_dim) * 2;
  const int64_t together = call.group * (32 * 1024 * 1024 / head_bytes > 0 ? 32 * 1024 * 1024 / head_bytes : 1);
  arguments.heads_together = static_cast<int>(together < call.matrices ? together : call.matrices);
  arguments.scale = static_cast<float>((call.scale == 0.0 ? 1.0 / std::sqrt(static_cast<double>(call.head_dim)) : call.scale) * 1.4426950408889634);
  arguments.lse = call.lse;
  int device, processors;
  check_cuda(cudaGetDevice(&device), "cudaGetDevice");
  check_cuda(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device), "cudaDeviceGetAttribute");
  check_cuda(cudaFuncSetAttribute(forward_kernel<S>, cudaFuncAttributeMaxDynamicSharedMemorySize, S::kBytes), "cudaFuncSetAttribute");
  const int blocks = call.persistent && arguments.tiles > processors ? processors : arguments.tiles;
  forward_kernel<S><<<blocks, S::kThreads, S::kBytes, stream>>>(maps, arguments);
  check_cuda(cudaGetLastError(), "attention forward");
}

}  // namespace attention
}  // namespace opforge

#endif  // OPFORGE_ATTENTION_FORWARD_H_
