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

template <typename T, int N, bool kOuterB>
struct ProductOfRegisters;

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
