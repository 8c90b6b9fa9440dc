// A stand-in for opforge/arch/hopper_heads.h, as hopper.h beside it is one: boxes of four axes, pairs of 16-bit numbers.
#ifndef OPFORGE_HOPPER_HEADS_H_
#define OPFORGE_HOPPER_HEADS_H_

#include "opforge/arch/hopper.h"

namespace opforge {
namespace hopper {

inline void start_box(void* target, const CUtensorMap* map, int inner, int row, int head, int entry, Barrier* barrier) {
  CUtensorMap of_entry = *map;
  if (entry < map->entries) of_entry.data += entry * map->entry_apart;
  else of_entry.count = 0;
  start_box(target, &of_entry, inner, row, head, barrier);
}

inline CUtensorMap describe_heads(const void* data, CUtensorMapDataType, int64_t dim, int64_t length, int64_t heads, int64_t batch, int64_t row, int64_t head,
                                  int64_t entry, int box_rows) {
  return {static_cast<unsigned char*>(const_cast<void*>(data)), dim, length, row * 2, heads, head * 2, box_rows, 2, 128, batch, entry * 2};
}

// Lane c of four holds terms 2 c and 2 c + 1, and 8 more, of rows r and r + 8: {row, row + 8, row with 8 more, row + 8 with 8 more}.
template <typename T, int N, bool kOuterB>
struct ProductOfRegisters {
  static void run(float (&sums)[N / 2], const Pair (&a)[4], uint64_t b, int add) {
    const unsigned char* all = emu::warp_exchange("wgmma", kFullMask, &a, sizeof(a), {__FILE__, __LINE__});
    unsigned char copied[32 * sizeof(a)];
    std::memcpy(copied, all, sizeof(copied));
    const int lane = static_cast<int>(threadIdx.x) % 32;
    float left[2][16];
    for (int half = 0; half < 2; ++half) {
      for (int term = 0; term < 16; ++term) {
        T value;
        std::memcpy(&value, copied + (lane / 4 * 4 + term % 8 / 2) * sizeof(a) + (half + term / 8 * 2) * 4 + term % 2 * 2, sizeof(T));
        left[half][term] = load_as_float(value);
      }
    }
    for (int i = 0; i < N / 2; ++i) {
      float sum = add != 0 ? sums[i] : 0.0f;
      for (int term = 0; term < 16; ++term) sum += left[i / 2 % 2][term] * factor<T, kOuterB>(b, i / 4 * 8 + lane % 4 * 2 + i % 2, term);
      sums[i] = sum;
    }
  }
};
#define OPFORGE_PRODUCTS_OF_REGISTERS(N)  // every width has the product above

template <int count>
inline void hold(Pair (&)[count][4]) {}

template <typename T>
inline Pair pack_two(float low, float high) {
  const T both[2] = {store_from_float<T>(low), store_from_float<T>(high)};
  Pair packed;
  std::memcpy(&packed, both, sizeof(packed));
  return packed;
}

}  // namespace hopper
}  // namespace opforge

#endif  // OPFORGE_HOPPER_HEADS_H_
