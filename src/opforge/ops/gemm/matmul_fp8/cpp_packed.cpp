// FP8 codes become scaled float32 numbers while panels are packed; from there on it is the float32 product of ../matmul/cpp_blocked.
//
// moves     a is packed once for each strip of STRIP columns, b once; y is written once where k <= DEPTH, else its sums are read and
//           written once per DEPTH terms, in float32
// idea      a code is 8 bits: b, which is packed once, is read at a fourth of what float32 would cost. Scales of tensors, rows and
//           blocks are all applied on the way, so that one loop serves them and sums are never scaled
// code      packing and the register tile are in opforge/gemm/host_tile.h
// limits    no CPU of today multiplies FP8: arithmetic is float32's, and a few rows of a wait for b to be packed
/* opforge
layouts = ["contiguous", "rows", "strided"]

[space]
DEPTH = [128, 256, 384]
BLOCK = [6, 12, 24, 36]
STRIP = [512, 1024, 2048, 4096]
ISA = [0, 1, 2, 3]

[default]
DEPTH = 384
BLOCK = 24
STRIP = 2048
ISA = 0
*/
#include "opforge/gemm/fp8_scales.h"
#include "opforge/gemm/host_tunables.h"

namespace {

// `count` codes, `stride` apart, as numbers times a scale.
template <typename T>
void widen_scaled(const uint8_t* codes, int64_t stride, int64_t count, float scale, float* __restrict__ target) {
  if (stride == 1) {
    for (int64_t l = 0; l < count; ++l) target[l] = opforge::fp8::widen<typename T::Format>(codes[l]) * scale;
  } else {
    for (int64_t l = 0; l < count; ++l) target[l] = opforge::fp8::widen<typename T::Format>(codes[l * stride]) * scale;
  }
}

// The rows of an operand, n or m of k terms each; `rows_per_scale` of them share a row of scales.
struct ScaledVectors {
  const uint8_t* codes;
  int64_t vector, depth;  // strides
  opforge::Scales scales;
  int64_t rows_per_scale, terms_per_scale;
  void (*widen)(const uint8_t*, int64_t, int64_t, float, float*);

  template <int width>
  void pack(int64_t first, int64_t start, int64_t count, int64_t terms, float* target) const {
    constexpr int64_t kChunk = opforge::kScaleBlock;
    alignas(64) float chunk[width][kChunk];
    for (int64_t l = 0; l < terms;) {
      // up to where the next block's scales begin
      const int64_t term = start + l, now = std::min(terms - l, kChunk - term % kChunk), block = term / terms_per_scale;
      for (int64_t i = 0; i < count; ++i)
        widen(codes + (first + i) * vector + term * depth, depth, now, scales.at((first + i) / rows_per_scale, block), chunk[i]);
      opforge::gemm::pack_panel<width>(chunk[0], kChunk, 1, count, now, target + l * width);
      l += now;
    }
  }
};

ScaledVectors vectors_of(const opforge::TensorView& tensor, const opforge::Matrix& matrix, const opforge::Scales& scales, bool blockwise, int64_t rows_per_scale) {
  const auto widen = opforge::holds_fp8<opforge::float8_e4m3_t>(tensor) ? widen_scaled<opforge::float8_e4m3_t> : widen_scaled<opforge::float8_e5m2_t>;
  return {matrix.typed<const uint8_t>(), matrix.row, matrix.col, scales, rows_per_scale, blockwise ? opforge::kScaleBlock : std::max<int64_t>(1, matrix.cols), widen};
}

void matmul_fp8(opforge::TensorView a, opforge::TensorView b, opforge::TensorView scale_a, opforge::TensorView scale_b, opforge::TensorView y, int scaling,
                int, int) {
  const opforge::Fp8Product call = opforge::check_fp8_product(a, b, scale_a, scale_b, y, scaling);
  if (call.y.numel() == 0) return;
  const int64_t m = call.y.rows, n = call.y.cols, k = call.a.cols;
  OPFORGE_DISPATCH_DTYPE(y, T, {
    const opforge::gemm::Elements<T> out = opforge::gemm::elements_of<T>(call.y, 0);
    if (k == 0) {
      for (int64_t i = 0; i < m; ++i)
        for (int64_t j = 0; j < n; ++j) out.data[i * out.row + j * out.col] = opforge::store_from_float<T>(0.0f);
    } else {
      const ScaledVectors left = vectors_of(a, call.a, call.scale_a, call.blockwise, 1);
      const ScaledVectors right = vectors_of(b, call.b, call.scale_b, call.blockwise, call.blockwise ? opforge::kScaleBlock : 1);
      opforge::gemm::multiply_packed<opforge::gemm::Tuned>(left, right, out, m, n, k, [](float*, int64_t, int64_t, int64_t) {});
    }
  });
}

}  // namespace

OPFORGE_EXPORT(run, matmul_fp8)
