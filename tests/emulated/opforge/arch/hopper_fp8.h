// A stand-in for opforge/arch/hopper_fp8.h, as hopper.h beside it is one: what 8-bit products read, by descriptor and from registers.
#ifndef OPFORGE_HOPPER_FP8_H_
#define OPFORGE_HOPPER_FP8_H_

#include "opforge/arch/hopper_heads.h"

// Byte i of the result is byte (selector >> 4 i) % 8 of low and high.
inline uint32_t __byte_perm(uint32_t low, uint32_t high, uint32_t selector) {
  const uint64_t both = static_cast<uint64_t>(high) << 32 | low;
  uint32_t found = 0;
  for (int i = 0; i < 4; ++i) found |= static_cast<uint32_t>(both >> (selector >> 4 * i & 7) * 8 & 0xff) << 8 * i;
  return found;
}

namespace opforge {
namespace hopper {

inline CUtensorMap describe_bytes(const void* data, int64_t dim, int64_t length, int64_t heads, int64_t batch, int64_t row, int64_t head, int64_t entry, int box_dim,
                                  int box_rows) {
  if (box_rows > 256) emu::fail("a box has more than 256 rows");
  return {static_cast<unsigned char*>(const_cast<void*>(data)), dim, length, row, heads, head, box_rows, 1, box_dim, batch, entry};
}

template <int kRowBytes>
inline uint64_t swizzled_operand(uint32_t address) {
  constexpr uint64_t kKind = kRowBytes == 128 ? 1 : kRowBytes == 64 ? 2 : 3;
  return static_cast<uint64_t>((address & 0x3ffff) >> 4) | static_cast<uint64_t>(8 * kRowBytes >> 4) << 32 | kKind << 62;
}

// Element (row, term) of an operand of bytes, rows of 128, 64 or 32 bytes as its descriptor says.
inline float byte_factor(uint64_t descriptor, int row, int term) {
  const uint32_t start = (descriptor & 0x3fff) << 4, stride = (descriptor >> 32 & 0x3fff) << 4;
  const int row_bytes = 256 >> (descriptor >> 62);
  float8_e4m3_t value;
  std::memcpy(&value, shared_base() + swizzled(row_bytes, start + row / 8 * stride + row % 8 * row_bytes + term), 1);
  return load_as_float(value);
}

// Products of 32 terms: left(row, term) times what `b` describes, for the sums that this thread holds.
template <int N, typename Left>
inline void multiply_bytes(float (&sums)[N / 2], const Left& left, uint64_t b, bool add) {
  const int thread = static_cast<int>(threadIdx.x) % 128, row = thread / 32 * 16 + thread % 32 / 4;
  for (int i = 0; i < N / 2; ++i) {
    float sum = add ? sums[i] : 0.0f;
    for (int term = 0; term < 32; ++term) sum += left(row + i / 2 % 2 * 8, term) * byte_factor(b, i / 4 * 8 + thread % 4 * 2 + i % 2, term);
    sums[i] = sum;
  }
}

template <int N>
struct Fp8Product {
  static void run(float (&sums)[N / 2], uint64_t a, uint64_t b, int add) {
    multiply_bytes<N>(sums, [&](int row, int term) { return byte_factor(a, row, term); }, b, add != 0);
  }
  static void begin(float (&sums)[N / 2], uint64_t a, uint64_t b) { run(sums, a, b, 0); }
};

// Lane c of four holds terms 4 c to 4 c + 3, and 16 more, of rows r and r + 8: {row, row + 8, row with 16 more, row + 8 with 16 more}.
template <int N>
struct Fp8ProductOfRegisters {
  static void run(float (&sums)[N / 2], const Pair (&a)[4], uint64_t b, int add) {
    const unsigned char* all = emu::warp_exchange("wgmma", kFullMask, &a, sizeof(a), {__FILE__, __LINE__});
    unsigned char copied[32 * sizeof(a)];
    std::memcpy(copied, all, sizeof(copied));
    const auto left = [&](int row, int term) {
      const int lane = row % 8 * 4 + term % 16 / 4, word = row / 8 % 2 + term / 16 * 2;
      float8_e4m3_t value;
      std::memcpy(&value, copied + lane * sizeof(a) + word * 4 + term % 4, 1);
      return load_as_float(value);
    };
    multiply_bytes<N>(sums, left, b, add != 0);
  }
};

inline Pair pack_four(float a, float b, float c, float d) {
  const float8_e4m3_t four[4] = {store_from_float<float8_e4m3_t>(a), store_from_float<float8_e4m3_t>(b), store_from_float<float8_e4m3_t>(c),
                                 store_from_float<float8_e4m3_t>(d)};
  Pair packed;
  std::memcpy(&packed, four, sizeof(packed));
  return packed;
}

}  // namespace hopper
}  // namespace opforge

#endif  // OPFORGE_HOPPER_FP8_H_
