// A stand-in for opforge/arch/hopper.h in the CPU emulator: what its functions do, at once and in order.
//
// Boxes are copied when they are asked for, products computed when they are started, by each thread for the sums that it holds.  What is
// swizzled on a GPU is swizzled here, so that a box in the wrong place, a wrong descriptor, or a barrier that counts wrongly shows.  What
// does not show: a wait for products or copies that is missing.
#ifndef OPFORGE_HOPPER_H_
#define OPFORGE_HOPPER_H_

#include <array>
#include <cstring>
#include <map>

#include "opforge/numeric/fp8_device.h"
#include "opforge/arch/shared_barriers.h"
#include "opforge/arch/tensor_core.h"

enum CUtensorMapDataType { CU_TENSOR_MAP_DATA_TYPE_FLOAT16, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, CU_TENSOR_MAP_DATA_TYPE_UINT8 };
struct CUtensorMap {
  unsigned char* data;
  int64_t inner, outer, pitch, count, apart;  // pitch and apart in bytes
  int box_rows, size, row_bytes;
  int64_t entries = 1, entry_apart = 0;  // of heads: entries of the batch
};

namespace opforge {

// Shared memory begins at a multiple of 1024 of an address space of 32 bits.
inline unsigned char* shared_base() {
  return reinterpret_cast<unsigned char*>((reinterpret_cast<uintptr_t>(emu::self()->block->dynamic_shared) + 1023) & ~uintptr_t(1023));
}
inline uint32_t shared_address(const void* p) { return static_cast<uint32_t>(static_cast<const unsigned char*>(p) - shared_base()); }

namespace hopper {

constexpr int kBox = 64, kBoxBytes = 8192;
using Barrier = SharedBarrier;

inline CUtensorMap describe_matrix(const void* data, CUtensorMapDataType, int64_t inner, int64_t outer, int64_t pitch, int box_rows = kBox, int size = 2,
                                   int row_bytes = 128) {
  return {static_cast<unsigned char*>(const_cast<void*>(data)), inner, outer, pitch * size, 1, 0, box_rows, size, row_bytes};
}
inline CUtensorMap describe_matrices(const void* data, CUtensorMapDataType, int64_t inner, int64_t outer, int64_t pitch, int64_t count, int64_t apart,
                                     int box_rows = kBox, int row_bytes = 128) {
  return {static_cast<unsigned char*>(const_cast<void*>(data)), inner, outer, pitch * 2, count, apart * 2, box_rows, 2, row_bytes};
}
template <typename T>
constexpr CUtensorMapDataType kMapType = CU_TENSOR_MAP_DATA_TYPE_FLOAT16;

inline int this_block() { return static_cast<int>(emu::self()->block->cluster_rank); }
inline void cluster_sync(const char* file = __builtin_FILE(), int line = __builtin_LINE()) { emu::wait_cluster({file, line}); }
template <int count>
inline void shrink_registers() {}
template <int count>
inline void grow_registers() {}
inline void launch_dependent_kernels() {}
inline void wait_for_prior_kernels() {}

inline void init_barrier(Barrier* barrier, int count) { init_shared_barrier(barrier, count); }
inline void fence_barrier_init() {}
inline void arrive_and_expect_bytes(Barrier* barrier, uint32_t bytes) { detail::change_barrier(barrier, this_block(), 1, static_cast<int>(bytes)); }
inline void arrive(Barrier* barrier) { detail::change_barrier(barrier, this_block(), 1, 0); }
inline void arrive_at(Barrier* barrier, uint32_t rank) { detail::change_barrier(barrier, static_cast<int>(rank), 1, 0); }
inline void wait(Barrier* barrier, uint32_t parity) {
  while (barrier->parity == parity) emu::wait_event({__FILE__, __LINE__});
}
inline void start_float(float* target, const float* source) { *target = *source; }

// Named barriers, and behind them one for each warpgroup.
struct Named {
  int arrived = 0;
  uint64_t generation = 0;
};
inline std::array<Named, 32>& named() {
  static std::map<const emu::Block*, std::array<Named, 32>> all;
  return all[emu::self()->block];
}
inline void begin_block() { named() = {}; }
inline bool arrived_last(int id, int count) {
  Named& barrier = named()[id];
  if (++barrier.arrived > count) emu::fail("more threads at a named barrier than it was made for");
  if (barrier.arrived < count) return false;
  barrier.arrived = 0;
  ++barrier.generation;
  emu::tell_event(static_cast<unsigned>(this_block()));
  return true;
}
inline void arrive_at_named_barrier(int id, int count) { arrived_last(id, count); }
inline void named_barrier(int id, int count) {
  const uint64_t before = named()[id].generation;
  if (arrived_last(id, count)) return;
  while (named()[id].generation == before) emu::wait_event({__FILE__, __LINE__});
}
inline void warpgroup_barrier() { named_barrier(16 + static_cast<int>(threadIdx.x) / 128, 128); }

inline uint32_t swizzled(int row_bytes, uint32_t address) {
  const uint32_t mask = row_bytes == 128 ? 7 : row_bytes == 64 ? 3 : row_bytes == 32 ? 1 : 0;
  return address ^ (address >> 7 & mask) << 4;
}
// Calls body(shared address, element or null beyond an edge) for all elements of a box.
template <typename Body>
void each_element(const CUtensorMap* map, int inner, int outer, int matrix, uint32_t start, const Body& body) {
  for (int row = 0; row < map->box_rows; ++row) {
    for (int i = 0; i < map->row_bytes / map->size; ++i) {
      const bool inside = inner + i < map->inner && outer + row < map->outer && matrix < map->count;
      const uint32_t at = swizzled(map->row_bytes, start + row * map->row_bytes + i * map->size);
      body(at, inside ? map->data + matrix * map->apart + (outer + row) * map->pitch + static_cast<int64_t>(inner + i) * map->size : nullptr);
    }
  }
}
inline void start_box_multicast(uint16_t blocks, void* target, const CUtensorMap* map, int inner, int outer, int matrix, Barrier* barrier) {
  if ((reinterpret_cast<uintptr_t>(map->data) | map->pitch | map->apart | map->entry_apart) % 16 != 0) emu::fail("the TMA addresses multiples of 16 bytes");
  if (shared_address(target) % 1024 != 0) emu::fail("a swizzled box begins at a multiple of 1024 bytes");
  for (int rank = 0; rank < 16; ++rank) {
    if ((blocks >> rank & 1) == 0) continue;
    each_element(map, inner, outer, matrix, shared_address(target), [&](uint32_t at, const unsigned char* from) {
      void* to = emu::in_block(shared_base() + at, static_cast<unsigned>(rank));
      if (from != nullptr) {
        std::memcpy(to, from, static_cast<std::size_t>(map->size));
      } else {
        std::memset(to, 0, static_cast<std::size_t>(map->size));
      }
    });
    detail::change_barrier(barrier, rank, 0, -map->box_rows * map->row_bytes);
  }
}
inline void start_box_multicast(uint16_t blocks, void* target, const CUtensorMap* map, int inner, int outer, Barrier* barrier) {
  start_box_multicast(blocks, target, map, inner, outer, 0, barrier);
}
inline void start_box(void* target, const CUtensorMap* map, int inner, int outer, int matrix, Barrier* barrier) {
  start_box_multicast(static_cast<uint16_t>(1u << this_block()), target, map, inner, outer, matrix, barrier);
}
inline void start_box(void* target, const CUtensorMap* map, int inner, int outer, Barrier* barrier) { start_box(target, map, inner, outer, 0, barrier); }
inline void prefetch_map(const CUtensorMap*) {}
inline void prefetch_box(const CUtensorMap*, int, int) {}
inline void prefetch_box(const CUtensorMap*, int, int, int) {}
inline void start_store(const CUtensorMap* map, int inner, int outer, int matrix, const void* source) {
  each_element(map, inner, outer, matrix, shared_address(source), [&](uint32_t at, unsigned char* to) {
    if (to != nullptr) std::memcpy(to, shared_base() + at, static_cast<std::size_t>(map->size));
  });
}
inline void start_store(const CUtensorMap* map, int inner, int outer, const void* source) { start_store(map, inner, outer, 0, source); }
inline void commit_stores() {}
template <int open>
inline void wait_for_reads() {}
inline void fence_async_proxy() {}

inline void store_matrices(void* address, Pair m0, Pair m1, Pair m2, Pair m3) {
  const Pair matrices[4] = {m0, m1, m2, m3};
  const unsigned char* addresses = emu::warp_exchange("stmatrix", kFullMask, &address, sizeof(address), {__FILE__, __LINE__});
  const int lane = static_cast<int>(emu::self()->lane);
  for (int i = 0; i < 4; ++i) {
    unsigned char* row;
    std::memcpy(&row, addresses + 16 * (8 * i + lane / 4), sizeof(row));
    std::memcpy(row + lane % 4 * 4, &matrices[i], 4);
  }
}

inline uint64_t operand(uint32_t address, uint32_t leading, uint32_t stride) {
  return static_cast<uint64_t>((address & 0x3ffff) >> 4) | static_cast<uint64_t>(leading >> 4) << 16 | static_cast<uint64_t>(stride >> 4) << 32 | 1ull << 62;
}
inline void fence_before_products() { warpgroup_barrier(); }
inline void commit_products() {}
template <int open>
inline void wait_for_products() {
  warpgroup_barrier();
}
template <int count>
inline void hold(float (&)[count]) {}

// Element (row, term) of an operand as its descriptor says; kOuter: rows are neighbours in memory.
template <typename T, bool kOuter>
inline float factor(uint64_t descriptor, int row, int term) {
  const uint32_t start = (descriptor & 0x3fff) << 4, leading = (descriptor >> 16 & 0x3fff) << 4, stride = (descriptor >> 32 & 0x3fff) << 4;
  const uint32_t at = kOuter ? start + row / 64 * leading + term * 128 + row % 64 * 2 : start + row / 8 * stride + row % 8 * 128 + term * sizeof(T);
  T value;
  std::memcpy(&value, shared_base() + swizzled(128, at), sizeof(T));
  return load_as_float(value);
}
template <typename T, int N, bool kOuterA, bool kOuterB>
struct Product {
  static void run(float (&sums)[N / 2], uint64_t a, uint64_t b, int add) {
    constexpr int kTerms = 32 / sizeof(T);
    const int thread = static_cast<int>(threadIdx.x) % 128, row = thread / 32 * 16 + thread % 32 / 4;
    for (int i = 0; i < N / 2; ++i) {
      const int down = row + i / 2 % 2 * 8, column = i / 4 * 8 + thread % 4 * 2 + i % 2;
      float sum = add != 0 ? sums[i] : 0.0f;
      for (int term = 0; term < kTerms; ++term) sum += factor<T, kOuterA>(a, down, term) * factor<T, kOuterB>(b, column, term);
      sums[i] = sum;
    }
  }
};
#define OPFORGE_PRODUCT8(...)  // every pair of formats has the Product above

}  // namespace hopper
}  // namespace opforge

#endif  // OPFORGE_HOPPER_H_
