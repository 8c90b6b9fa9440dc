// opforge/norm/groups_device.h - statistics of groups on the GPU: each group in as many parts as keep the device busy.
//
// source    Chan, Golub and LeVeque 1983: how the moments of parts become those of the whole
/* opforge
[default]
THREADS = 256

[space]
THREADS = [128, 256, 512, 1024]
*/
#ifndef OPFORGE_NORM_GROUPS_DEVICE_H_
#define OPFORGE_NORM_GROUPS_DEVICE_H_

#include "opforge/arch/packed.h"
#include "opforge/norm/groups.h"

namespace opforge {

/// A group read in parts of `size` elements, whole vectors.
struct GroupParts {
  int64_t length, size;
  int parts;
};

/// The mean of a part, and the sum of squares of the deviations from it.
struct PartMoments {
  float mean, squares;
};

/// What a group's elements are taken with: (x - mean) * scale.
struct GroupScale {
  float mean, scale;
};

/// Blocks that keep any device busy: groups are split until there are about so many.
constexpr int64_t kGroupBlocks = 528;

inline GroupParts group_parts(const GroupShape& shape, int64_t least) {
  const int64_t groups = shape.batch * shape.groups;
  int64_t parts = groups >= kGroupBlocks / 2 ? 1 : ceil_div(kGroupBlocks, groups < 1 ? 1 : groups);
  const int64_t most = ceil_div(shape.length, least);
  if (parts > most) parts = most;
  if (parts > 128) parts = 128;
  const int64_t size = ceil_div(ceil_div(shape.length, parts), 16) * 16;
  return {shape.length, size, static_cast<int>(ceil_div(shape.length, size))};
}

/// f(place, values) for the vectors of `count` elements at x, a block's threads side by side.
template <typename T, int N, int Threads, typename F>
__device__ __forceinline__ void for_part(const T* x, int64_t count, const F& f) {
#pragma unroll 4
  for (int64_t i = static_cast<int64_t>(threadIdx.x) * N; i < count; i += Threads * N) {
    float values[N];
    Packed<T, N>::load(x + i).unpack(values);
    f(i, values);
  }
}

/// The moments of `count` elements, in every thread.
template <typename T, int N, int Threads>
__device__ __forceinline__ PartMoments moments_of_part(const T* x, int64_t count) {
  float sum = 0.0f;
  for_part<T, N, Threads>(x, count, [&](int64_t, const float (&values)[N]) {
#pragma unroll
    for (int j = 0; j < N; ++j) sum += values[j];
  });
  const float mean = block_reduce_sum(sum) / static_cast<float>(count);
  float squares = 0.0f;
  for_part<T, N, Threads>(x, count, [&](int64_t, const float (&values)[N]) {
#pragma unroll
    for (int j = 0; j < N; ++j) squares += (values[j] - mean) * (values[j] - mean);
  });
  return {mean, block_reduce_sum(squares)};
}

/// Elements of one part of a group.
__device__ __forceinline__ int64_t count_of(const GroupParts& of, int part) {
  const int64_t left = of.length - part * of.size;
  return left < of.size ? left : of.size;
}

/// The statistics of a group from the moments of its parts; all lanes of a warp call, and all get them.
__device__ __forceinline__ GroupScale join_parts(const PartMoments* parts, const GroupParts& of, float eps) {
  // as deviations from the first part's mean, which loses nothing where all lie far from 0
  const float origin = parts[0].mean;
  const int lane = threadIdx.x % kWarpSize;
  float shift = 0.0f;
  for (int p = lane; p < of.parts; p += kWarpSize)
    shift += (parts[p].mean - origin) * static_cast<float>(count_of(of, p));
  shift = warp_reduce_sum(shift) / static_cast<float>(of.length);
  float squares = 0.0f;
  for (int p = lane; p < of.parts; p += kWarpSize) {
    const float apart = parts[p].mean - origin - shift;
    squares += parts[p].squares + apart * apart * static_cast<float>(count_of(of, p));
  }
  return {origin + shift, rsqrtf(warp_reduce_sum(squares) / static_cast<float>(of.length) + eps)};
}

/// A block takes a part of a group.
template <typename T, int N, int Threads>
__global__ void __launch_bounds__(Threads) gather_moments(const T* x, PartMoments* moments, GroupParts of) {
  const int64_t group = blockIdx.x / of.parts;
  const int part = blockIdx.x % of.parts;
  const PartMoments found = moments_of_part<T, N, Threads>(x + group * of.length + part * of.size, count_of(of, part));
  if (threadIdx.x == 0) moments[blockIdx.x] = found;
}

/// Whether vectors of 16 bytes lie in one channel each.
template <typename T>
inline bool channels_are_vectors(const GroupShape& shape, std::initializer_list<const void*> pointers) {
  for (const void* p : pointers)
    if (reinterpret_cast<uintptr_t>(p) % 16 != 0) return false;
  return shape.positions % kVecSize<T> == 0;
}

inline unsigned group_grid(const GroupShape& shape, int64_t parts) {
  const int64_t blocks = shape.batch * shape.groups * parts;
  OPFORGE_CHECK(blocks < (int64_t(1) << 31) && shape.length < (int64_t(1) << 31), ValueError,
                "there are too many groups, or elements of one, for one launch");
  return static_cast<unsigned>(blocks);
}

}  // namespace opforge

#endif  // OPFORGE_NORM_GROUPS_DEVICE_H_
