// opforge/arch/tensor_core.h - matrix instructions of a warp and copies that overlap with them (sm_80 and later).
//
// Each function is one PTX instruction.  In the emulator the warp's lanes exchange
// their operands instead, and a copy arrives only when it is waited for (until then
// its target holds NaN bytes), so that a wait that is missing shows.
#ifndef OPFORGE_TENSOR_CORE_H_
#define OPFORGE_TENSOR_CORE_H_

#include "opforge/device.h"

#ifdef OPFORGE_EMULATE
#include <deque>
#include <mutex>
#include <unordered_map>
#endif

namespace opforge {

/// Two 16-bit elements in one register, the element of the lower index in the lower half; or one float32 element.
using Pair = uint32_t;

#ifdef OPFORGE_EMULATE

namespace emu {

struct Copy {
  void* target;
  const void* source;
  int bytes;      // of the 16 that are read; the others become zero
  unsigned long group;
};

// A thread's copies that are under way.
struct Copies {
  uint3 block{};
  unsigned long groups = 0;
  std::deque<Copy> pending;
};

// Those of the running thread.  Not thread_local: such memory is a block's shared memory here.
inline Copies& copies() {
  static std::mutex mutex;
  static std::unordered_map<const Fiber*, Copies> all;
  const Fiber* fiber = self();
  const uint3& block = fiber->block->block_index;
  const std::lock_guard<std::mutex> lock(mutex);
  Copies& own = all[fiber];
  // what an earlier block never waited for is dropped
  if (own.block.x != block.x || own.block.y != block.y || own.block.z != block.z) own = Copies{block};
  return own;
}

template <typename T>
inline float element(const unsigned char* values, int lane, int index) {
  T value;
  std::memcpy(&value, values + 16 * lane + sizeof(T) * index, sizeof(T));
  return load_as_float(value);
}

// The same, as a product sees it.
template <typename T>
inline float factor(const unsigned char* values, int lane, int index) {
  const float value = element<T>(values, lane, index);
  if (sizeof(T) == 2) return value;
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  bits &= 0xffffe000u;
  float cut;
  std::memcpy(&cut, &bits, sizeof(cut));
  return cut;
}

template <bool kTransposed>
inline void load_matrices(Pair (&out)[4], const void* address, Site site) {
  if (reinterpret_cast<uintptr_t>(address) % 16 != 0) fail("misaligned ldmatrix");
  const unsigned char* addresses = warp_exchange("ldmatrix", kFullMask, &address, sizeof(address), site);
  const int lane = static_cast<int>(self()->lane);
  for (int i = 0; i < 4; ++i) {
    uint16_t two[2];
    for (int j = 0; j < 2; ++j) {
      const int row = kTransposed ? lane % 4 * 2 + j : lane / 4, col = kTransposed ? lane / 4 : lane % 4 * 2 + j;
      const unsigned char* start;
      std::memcpy(&start, addresses + 16 * (8 * i + row), sizeof(start));
      std::memcpy(&two[j], start + 2 * col, sizeof(uint16_t));
    }
    out[i] = two[0] | static_cast<uint32_t>(two[1]) << 16;
  }
}

}  // namespace emu

/// Loads four 8 x 8 matrices of 16-bit elements from shared memory; lane l gives the address of row l % 8 of matrix l / 8.
inline void load_matrices(Pair (&out)[4], const void* address, OPFORGE_EMU_HERE) {
  emu::load_matrices<false>(out, address, {file, line});
}
/// The same, each matrix transposed on the way.
inline void load_matrices_transposed(Pair (&out)[4], const void* address, OPFORGE_EMU_HERE) {
  emu::load_matrices<true>(out, address, {file, line});
}

/// sums += a * b for a 16 x 16, b 16 x 8 and sums 16 x 8 spread over the warp (PTX ISA, mma.m16n8k16); T is half_t or bfloat16_t. Of
/// float a is 16 x 8 and b 8 x 8 (mma.m16n8k8): TF32, the last 13 bits of every factor are cut off.
template <typename T>
inline void multiply_matrices(float (&sums)[4], const Pair (&a)[4], const Pair (&b)[2], OPFORGE_EMU_HERE) {
  const emu::Site site{file, line};
  unsigned char left[32 * 16];
  // copied: the next exchange but one uses the same memory
  std::memcpy(left, emu::warp_exchange("mma", kFullMask, a, sizeof(a), site), sizeof(left));
  const unsigned char* right = emu::warp_exchange("mma", kFullMask, b, sizeof(b), site);
  const int lane = static_cast<int>(emu::self()->lane);
  constexpr int kTogether = 4 / sizeof(T), kHalf = 4 * kTogether;  // elements in a register, terms in half of an instruction
  for (int i = 0; i < 4; ++i) {
    const int row = lane / 4, col = lane % 4 * 2 + i % 2;
    // products are exact and their sum is rounded once: closer to the hardware, which aligns them all before it adds
    double sum = sums[i];
    for (int l = 0; l < 2 * kHalf; ++l) {
      // element (row + 8 * (i / 2), l) of a is in register i / 2 + 2 * (l / kHalf) of lane row * 4 + l % kHalf / kTogether
      const int owner = l % kHalf / kTogether;
      const float x = emu::factor<T>(left, row * 4 + owner, kTogether * (i / 2 + 2 * (l / kHalf)) + l % kTogether);
      const float y = emu::factor<T>(right, col * 4 + owner, kTogether * (l / kHalf) + l % kTogether);
      sum += static_cast<double>(x) * y;
    }
    sums[i] = static_cast<float>(sum);
  }
}

/// Starts copying 16 bytes to shared memory; only the first `bytes` are read, the others become zero.
inline void start_copy(void* shared, const void* global, int bytes) {
  if (reinterpret_cast<uintptr_t>(shared) % 16 != 0 || (bytes > 0 && reinterpret_cast<uintptr_t>(global) % 16 != 0))
    emu::fail("misaligned cp.async");
  std::memset(shared, 0xff, 16);
  emu::Copies& own = emu::copies();
  own.pending.push_back({shared, global, bytes, own.groups});
}
/// Closes a group of copies: those that this thread started since the last one.
inline void commit_copies() { ++emu::copies().groups; }
/// Waits until at most `open` of this thread's latest groups are still under way.
template <int open>
inline void wait_for_copies() {
  emu::Copies& own = emu::copies();
  while (!own.pending.empty() && own.pending.front().group + open < own.groups) {
    const emu::Copy& copy = own.pending.front();
    std::memcpy(copy.target, copy.source, copy.bytes);
    std::memset(static_cast<char*>(copy.target) + copy.bytes, 0, 16 - copy.bytes);
    own.pending.pop_front();
  }
}

#else

__device__ __forceinline__ uint32_t shared_address(const void* p) { return static_cast<uint32_t>(__cvta_generic_to_shared(p)); }

__device__ __forceinline__ void load_matrices(Pair (&out)[4], const void* address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
               : "r"(shared_address(address))
               : "memory");
}
__device__ __forceinline__ void load_matrices_transposed(Pair (&out)[4], const void* address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
               : "r"(shared_address(address))
               : "memory");
}

template <typename T>
__device__ __forceinline__ void multiply_matrices(float (&sums)[4], const Pair (&a)[4], const Pair (&b)[2]);
template <>
__device__ __forceinline__ void multiply_matrices<half_t>(float (&sums)[4], const Pair (&a)[4], const Pair (&b)[2]) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
template <>
__device__ __forceinline__ void multiply_matrices<bfloat16_t>(float (&sums)[4], const Pair (&a)[4], const Pair (&b)[2]) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

template <>
__device__ __forceinline__ void multiply_matrices<float>(float (&sums)[4], const Pair (&a)[4], const Pair (&b)[2]) {
  asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

__device__ __forceinline__ void start_copy(void* shared, const void* global, int bytes) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(shared)), "l"(global), "r"(bytes) : "memory");
}
__device__ __forceinline__ void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int open>
__device__ __forceinline__ void wait_for_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(open) : "memory");
}

#endif  // OPFORGE_EMULATE

}  // namespace opforge

#endif  // OPFORGE_TENSOR_CORE_H_
