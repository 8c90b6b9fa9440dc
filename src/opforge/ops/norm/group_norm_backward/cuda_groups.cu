// Moments of a group's parts, the two sums of each channel of an image, then dx part by part; channels are added up over images in one order.
//
// moves     x three times and dy twice (later ones from the L2 cache where all of it fits), dx once
// limits    a group of less than 2^31 elements; 16-byte accesses where each channel is whole vectors; four launches
/* opforge
like = "opforge/norm/groups_device.h"
*/
#include "opforge/arch/scratch.h"
#include "opforge/norm/groups_device.h"

namespace {

using opforge::GroupParts;
using opforge::GroupScale;
using opforge::PartMoments;

/// Of the elements of one channel of an image: the sum of dy, and that of dy * h.
struct ChannelSums {
  float level, slope;
};

// kTeam threads take a channel of an image: a warp where channels are short, otherwise a block.
template <typename T, int N, int kTeam>
__global__ void __launch_bounds__(THREADS) gather_sums(const T* x, const T* dy, const PartMoments* moments,
                                                       ChannelSums* sums, GroupParts of, int64_t channels,
                                                       unsigned each, unsigned positions, float eps) {
  const int64_t channel = static_cast<int64_t>(blockIdx.x) * (THREADS / kTeam) + threadIdx.x / kTeam;
  // whole warps leave together
  if (channel >= channels) return;
  const GroupScale scale = opforge::join_parts(moments + channel / each * of.parts, of, eps);
  const T *from = x + channel * positions, *arrived = dy + channel * positions;
  float level = 0.0f, slope = 0.0f;
#pragma unroll 2
  for (unsigned i = threadIdx.x % kTeam * N; i < positions; i += kTeam * N) {
    float values[N], given[N];
    opforge::Packed<T, N>::load(from + i).unpack(values);
    opforge::Packed<T, N>::load(arrived + i).unpack(given);
#pragma unroll
    for (int j = 0; j < N; ++j) {
      level += given[j];
      slope += given[j] * ((values[j] - scale.mean) * scale.scale);
    }
  }
  if constexpr (kTeam == opforge::kWarpSize) {
    level = opforge::warp_reduce_sum(level);
    slope = opforge::warp_reduce_sum(slope);
  } else {
    level = opforge::block_reduce_sum(level);
    slope = opforge::block_reduce_sum(slope);
  }
  if (threadIdx.x % kTeam == 0) sums[channel] = {level, slope};
}

template <typename T, int N>
__global__ void __launch_bounds__(THREADS) gradients(const T* x, const T* weight, const T* dy, T* dx,
                                                     const PartMoments* moments, const ChannelSums* sums, GroupParts of,
                                                     unsigned groups, unsigned each, unsigned positions, float eps) {
  const int64_t group = blockIdx.x / of.parts;
  const int part = blockIdx.x % of.parts;
  const int64_t first = part * of.size, count = opforge::count_of(of, part);
  const GroupScale scale = opforge::join_parts(moments + group * of.parts, of, eps);
  const T* weights = weight + group % groups * each;
  float level = 0.0f, slope = 0.0f;
  for (unsigned c = threadIdx.x; c < each; c += THREADS) {
    const float w = opforge::load_as_float(weights[c]);
    const ChannelSums mine = sums[group * each + c];
    level += w * mine.level;
    slope += w * mine.slope;
  }
  level = opforge::block_reduce_sum(level) / static_cast<float>(of.length);
  slope = opforge::block_reduce_sum(slope) / static_cast<float>(of.length);
  const int64_t begin = group * of.length + first;
  opforge::for_part<T, N, THREADS>(x + begin, count, [&](int64_t i, const float (&values)[N]) {
    const float w = opforge::load_as_float(weights[static_cast<unsigned>(first + i) / positions]);
    float given[N], result[N];
    opforge::Packed<T, N>::load(dy + begin + i).unpack(given);
#pragma unroll
    for (int j = 0; j < N; ++j)
      result[j] = (given[j] * w - level - (values[j] - scale.mean) * scale.scale * slope) * scale.scale;
    opforge::Packed<T, N>::pack(result).store_once(dx + begin + i);
  });
}

template <typename T>
__global__ void __launch_bounds__(THREADS) add_images(const ChannelSums* sums, T* dweight, T* dbias, int64_t batch,
                                                      int64_t channels) {
  const int64_t channel = static_cast<int64_t>(blockIdx.x) * THREADS + threadIdx.x;
  if (channel >= channels) return;
  float level = 0.0f, slope = 0.0f;
  for (int64_t image = 0; image < batch; ++image) {
    level += sums[image * channels + channel].level;
    slope += sums[image * channels + channel].slope;
  }
  dweight[channel] = opforge::store_from_float<T>(slope);
  dbias[channel] = opforge::store_from_float<T>(level);
}

template <typename T, int N>
void launch(const T* x, const T* weight, const T* dy, T* dx, PartMoments* moments, ChannelSums* sums,
            const opforge::GroupShape& shape, const GroupParts& of, float eps, cudaStream_t stream) {
  const unsigned grid = opforge::group_grid(shape, of.parts), groups = static_cast<unsigned>(shape.groups),
                 each = static_cast<unsigned>(shape.each), positions = static_cast<unsigned>(shape.positions);
  const int64_t channels = shape.batch * shape.channels;
  OPFORGE_LAUNCH((opforge::gather_moments<T, N, THREADS>), grid, THREADS, 0, stream, x, moments, of);
  const auto gather = [&](auto kernel, int64_t teams) {
    OPFORGE_LAUNCH(kernel, static_cast<unsigned>(opforge::ceil_div(channels, teams)), THREADS, 0, stream, x, dy,
                   static_cast<const PartMoments*>(moments), sums, of, channels, each, positions, eps);
  };
  // below 16 vectors a lane a block would wait for its barriers
  if (shape.positions < 16 * N * opforge::kWarpSize) {
    gather(gather_sums<T, N, opforge::kWarpSize>, THREADS / opforge::kWarpSize);
  } else {
    gather(gather_sums<T, N, THREADS>, 1);
  }
  OPFORGE_LAUNCH((gradients<T, N>), grid, THREADS, 0, stream, x, weight, dy, dx,
                 static_cast<const PartMoments*>(moments), static_cast<const ChannelSums*>(sums), of, groups, each,
                 positions, eps);
}

void group_norm_backward(opforge::TensorView x, opforge::TensorView weight, opforge::TensorView dy,
                         opforge::TensorView dx, opforge::TensorView dweight, opforge::TensorView dbias, int64_t groups,
                         double eps) {
  const opforge::GroupShape shape = opforge::check_groups(
      {{"x", x}, {"dy", dy}, {"dx", dx}}, {{"weight", weight}, {"dweight", dweight}, {"dbias", dbias}}, groups);
  opforge::check_device({"x", x});
  if (shape.channels == 0) return;
  const auto stream = opforge::current_stream(x);
  const bool any = x.numel() > 0;
  const GroupParts of = any ? opforge::group_parts(shape, 4096) : GroupParts{0, 0, 0};
  const int64_t of_moments = any ? shape.batch * shape.groups * of.parts * sizeof(PartMoments) : 0;
  const opforge::Scratch scratch(of_moments + (any ? shape.batch * shape.channels * sizeof(ChannelSums) : 0), stream);
  PartMoments* moments = static_cast<PartMoments*>(scratch.data());
  ChannelSums* sums = reinterpret_cast<ChannelSums*>(static_cast<char*>(scratch.data()) + of_moments);
  OPFORGE_DISPATCH_DTYPE(x, T, {
    if (any) {
      const auto run = opforge::channels_are_vectors<T>(shape, {x.data_ptr(), dy.data_ptr(), dx.data_ptr()})
                           ? launch<T, opforge::kVecSize<T>>
                           : launch<T, 1>;
      run(opforge::data<const T>(x), opforge::data<const T>(weight), opforge::data<const T>(dy), opforge::data<T>(dx),
          moments, sums, shape, of, static_cast<float>(eps), stream);
    }
    // without an element the sums are of nothing
    OPFORGE_LAUNCH(add_images<T>, static_cast<unsigned>(opforge::ceil_div(shape.channels, THREADS)), THREADS, 0, stream,
                   static_cast<const ChannelSums*>(sums), opforge::data<T>(dweight), opforge::data<T>(dbias),
                   any ? shape.batch : 0, shape.channels);
  });
}

}  // namespace

OPFORGE_EXPORT(run, group_norm_backward)
