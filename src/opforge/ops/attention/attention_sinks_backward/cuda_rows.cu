// Sixteen lanes take a row, a block 128 rows of a head; a second kernel adds up what blocks of a head gave, in one order.
//
// source    gpt-oss (OpenAI 2025), attention sinks
// idea      what a sink has of a row is taken from all of its weights alike: dsink = - sum over rows of exp(sink - lse) * (dout . out - dlse). No scores
//           are made
// moves     out and dout once, two numbers a row; what 128 rows give is one number in memory
// precision sums in float32; exponentials by expf
/* opforge
layouts = ["contiguous", "rows", "strided"]
*/
#include "opforge/arch/scratch.h"
#include "opforge/device.h"

namespace {

constexpr int kRows = 128, kThreads = 256, kLanes = 16;

/// A tensor that is read by rows: strides in elements.
template <typename T>
struct Lines {
  const T* data;
  int64_t entry, head, row, col;
};

template <typename T>
Lines<T> lines_of(const opforge::TensorView& tensor) {
  return {opforge::data<const T>(tensor), tensor.stride(0), tensor.stride(1), tensor.stride(2), tensor.ndim() == 4 ? tensor.stride(3) : 0};
}

/// Whether all rows begin at whole vectors of 16 bytes, and consist of them.
template <typename T>
bool by_vectors(const Lines<T>& of, int64_t cols) {
  constexpr int kWhole = opforge::kVecSize<T>;
  return opforge::can_vectorize(of.data, cols) && of.col == 1 && of.entry % kWhole == 0 && of.head % kWhole == 0 && of.row % kWhole == 0;
}

/// What 128 rows of a head, of all its entries, give: parts[head, blocks of rows].
template <typename T, bool kVectors>
__global__ void __launch_bounds__(kThreads) gather_shares(Lines<T> out, Lines<T> dout, Lines<float> lse, Lines<float> dlse, const float* sinks, int64_t sinks_step,
                                                          float* parts, int64_t blocks, int64_t rows, int64_t queries, int value_dim) {
  const int64_t head = blockIdx.x / blocks, block = blockIdx.x % blocks;
  const int lane = threadIdx.x % kLanes, own = threadIdx.x / kLanes;
  const float sink = sinks[head * sinks_step];
  float given = 0.0f;
  for (int i = 0; i < kRows * kLanes / kThreads; ++i) {
    const int64_t at = block * kRows + i * (kThreads / kLanes) + own;
    const bool inside = at < rows;
    const int64_t entry = inside ? at / queries : 0, row = inside ? at % queries : 0;
    float sum = 0.0f;
    if (inside) {
      const T* a = out.data + entry * out.entry + head * out.head + row * out.row;
      const T* b = dout.data + entry * dout.entry + head * dout.head + row * dout.row;
      if constexpr (kVectors) {
        constexpr int kWhole = opforge::kVecSize<T>;
        for (int col = lane * kWhole; col < value_dim; col += kLanes * kWhole) {
          const auto left = opforge::Vec<T, kWhole>::load(a + col), right = opforge::Vec<T, kWhole>::load(b + col);
#pragma unroll
          for (int j = 0; j < kWhole; ++j) sum = fmaf(opforge::load_as_float(left[j]), opforge::load_as_float(right[j]), sum);
        }
      } else {
        for (int col = lane; col < value_dim; col += kLanes)
          sum = fmaf(opforge::load_as_float(a[col * out.col]), opforge::load_as_float(b[col * dout.col]), sum);
      }
    }
    // lanes of rows that are none take part
#pragma unroll
    for (int far = kLanes / 2; far > 0; far /= 2) sum += __shfl_xor_sync(opforge::kFullMask, sum, far);
    if (inside && lane == 0) {
      const float log_sum = lse.data[entry * lse.entry + head * lse.head + row * lse.row];
      const float middle = sum - dlse.data[entry * dlse.entry + head * dlse.head + row * dlse.row];
      // a row that has no sum gives nothing
      if (log_sum != -INFINITY) given = fmaf(expf(sink - log_sum), middle, given);
    }
  }
  given = opforge::block_reduce_sum(given);
  if (threadIdx.x == 0) parts[head * blocks + block] = given;
}

__global__ void __launch_bounds__(kThreads) add_parts(const float* parts, int64_t blocks, float* dsinks) {
  float sum = 0.0f;
  for (int64_t at = threadIdx.x; at < blocks; at += kThreads) sum += parts[blockIdx.x * blocks + at];
  sum = opforge::block_reduce_sum(sum);
  if (threadIdx.x == 0) dsinks[blockIdx.x] = -sum;
}

void sinks_backward(opforge::TensorView out, opforge::TensorView lse, opforge::TensorView dout, opforge::TensorView dlse, opforge::TensorView sinks,
                    opforge::TensorView dsinks) {
  OPFORGE_CHECK_NDIM(out, 4);
  OPFORGE_CHECK_NDIM(dout, 4);
  OPFORGE_CHECK_NDIM(lse, 3);
  OPFORGE_CHECK_NDIM(dlse, 3);
  OPFORGE_CHECK_SAME_DTYPE(out, dout);
  OPFORGE_CHECK_CONTIGUOUS(dsinks);
  OPFORGE_CHECK(sinks.ndim() == 1 && sinks.size(0) == out.size(1), ValueError, "sinks must have one value for each head");
  OPFORGE_CHECK_DEVICE(out);
  const cudaStream_t stream = opforge::current_stream(out);
  const int64_t heads = out.size(1), queries = out.size(2), rows = out.size(0) * queries, blocks = opforge::ceil_div(rows, kRows);
  if (heads == 0) return;
  OPFORGE_CHECK(heads * blocks < int64_t{1} << 31, ValueError, "more than 2^31 blocks of rows");
  const opforge::Scratch parts(heads * blocks * sizeof(float), stream);
  float* const given = static_cast<float*>(parts.data());
  OPFORGE_DISPATCH_DTYPE(out, T, {
    const auto values = lines_of<T>(out), arriving = lines_of<T>(dout);
    const int64_t dim = out.size(3);
    const bool vectors = by_vectors(values, dim) && by_vectors(arriving, dim);
    const auto kernel = vectors ? gather_shares<T, true> : gather_shares<T, false>;
    if (blocks > 0)
      OPFORGE_LAUNCH(kernel, static_cast<unsigned>(heads * blocks), kThreads, 0, stream, values, arriving, lines_of<float>(lse), lines_of<float>(dlse),
                     opforge::data<const float>(sinks), sinks.stride(0), given, blocks, rows, queries, static_cast<int>(dim));
  });
  OPFORGE_LAUNCH(add_parts, static_cast<unsigned>(heads), kThreads, 0, stream, static_cast<const float*>(given), blocks, opforge::data<float>(dsinks));
}

}  // namespace

OPFORGE_EXPORT(run, sinks_backward)
