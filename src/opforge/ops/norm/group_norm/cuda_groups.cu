// A block takes a group, or a part of one where groups are few; the mean, then the deviations from it, then the result.
//
// moves     x once from memory and twice from a cache where a group has one block, and y once; in parts, x twice where it is larger than the L2 cache
// limits    a group of less than 2^31 elements; 16-byte accesses where each channel is whole vectors
/* opforge
like = "opforge/norm/groups_device.h"
*/
#include "opforge/arch/scratch.h"
#include "opforge/norm/groups_device.h"

namespace {

using opforge::GroupParts;
using opforge::GroupScale;
using opforge::PartMoments;

// kWhole: a part is a group, and its statistics are made here; otherwise they are joined from `moments`.
template <typename T, int N, bool kWhole>
__global__ void __launch_bounds__(THREADS) normalise(const T* x, const T* weight, const T* bias, T* y,
                                                     const PartMoments* moments, GroupParts of, unsigned groups,
                                                     unsigned each, unsigned positions, float eps) {
  const int64_t group = blockIdx.x / of.parts;
  const int part = blockIdx.x % of.parts;
  const int64_t first = part * of.size, count = opforge::count_of(of, part);
  const T* from = x + group * of.length + first;
  GroupScale scale;
  if constexpr (kWhole) {
    const PartMoments found = opforge::moments_of_part<T, N, THREADS>(from, count);
    scale = {found.mean, rsqrtf(found.squares / static_cast<float>(count) + eps)};
  } else {
    scale = opforge::join_parts(moments + group * of.parts, of, eps);
  }
  const unsigned channel = static_cast<unsigned>(group % groups) * each;
  T* to = y + group * of.length + first;
  opforge::for_part<T, N, THREADS>(from, count, [&](int64_t i, const float (&values)[N]) {
    const unsigned c = channel + static_cast<unsigned>(first + i) / positions;
    const float w = opforge::load_as_float(weight[c]), b = opforge::load_as_float(bias[c]);
    float result[N];
#pragma unroll
    for (int j = 0; j < N; ++j) result[j] = (values[j] - scale.mean) * scale.scale * w + b;
    opforge::Packed<T, N>::pack(result).store_once(to + i);
  });
}

template <typename T, int N>
void launch(const opforge::TensorView& x, const T* weight, const T* bias, T* y, const opforge::GroupShape& shape,
            float eps) {
  const GroupParts of = opforge::group_parts(shape, 4096);
  const unsigned grid = opforge::group_grid(shape, of.parts);
  const auto stream = opforge::current_stream(x);
  const T* from = opforge::data<const T>(x);
  const unsigned groups = static_cast<unsigned>(shape.groups), each = static_cast<unsigned>(shape.each),
                 positions = static_cast<unsigned>(shape.positions);
  if (of.parts == 1) {
    OPFORGE_LAUNCH((normalise<T, N, true>), grid, THREADS, 0, stream, from, weight, bias, y,
                   static_cast<const PartMoments*>(nullptr), of, groups, each, positions, eps);
    return;
  }
  const opforge::Scratch scratch(static_cast<int64_t>(grid) * sizeof(PartMoments), stream);
  PartMoments* moments = static_cast<PartMoments*>(scratch.data());
  OPFORGE_LAUNCH((opforge::gather_moments<T, N, THREADS>), grid, THREADS, 0, stream, from, moments, of);
  OPFORGE_LAUNCH((normalise<T, N, false>), grid, THREADS, 0, stream, from, weight, bias, y,
                 static_cast<const PartMoments*>(moments), of, groups, each, positions, eps);
}

void group_norm(opforge::TensorView x, opforge::TensorView weight, opforge::TensorView bias, opforge::TensorView y,
                int64_t groups, double eps) {
  const opforge::GroupShape shape =
      opforge::check_groups({{"x", x}, {"y", y}}, {{"weight", weight}, {"bias", bias}}, groups);
  opforge::check_device({"x", x});
  if (x.numel() == 0) return;
  OPFORGE_DISPATCH_DTYPE(x, T, {
    const T *w = opforge::data<const T>(weight), *b = opforge::data<const T>(bias);
    if (opforge::channels_are_vectors<T>(shape, {x.data_ptr(), y.data_ptr()})) {
      launch<T, opforge::kVecSize<T>>(x, w, b, opforge::data<T>(y), shape, static_cast<float>(eps));
    } else {
      launch<T, 1>(x, w, b, opforge::data<T>(y), shape, static_cast<float>(eps));
    }
  });
}

}  // namespace

OPFORGE_EXPORT(run, group_norm)
