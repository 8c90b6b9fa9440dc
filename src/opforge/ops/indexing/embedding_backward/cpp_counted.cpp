// Indices sorted by counting, in their order; then each row of the table is added up in float32, rows spread over the threads.
//
// moves     dy once, dweight once; two passes over the indices
// limits    a row that very many indices name is one thread's
#include <algorithm>
#include <vector>

#include "opforge/arch/host_lanes.h"
#include "opforge/indexing/checks.h"

namespace {

template <typename T>
void add(const int64_t* indices, int64_t count, const T* dy, T* dweight, int64_t vocab, int64_t dim,
         int64_t padding_idx) {
  const auto there = [&](int64_t index) { return index >= 0 && index < vocab && index != padding_idx; };
  // row r has terms ends[r] up to ends[r + 1] once they are placed
  std::vector<int64_t> ends(vocab + 2, 0), terms(count);
  for (int64_t i = 0; i < count; ++i)
    if (there(indices[i])) ++ends[indices[i] + 2];
  for (int64_t r = 0; r < vocab; ++r) ends[r + 2] += ends[r + 1];
  for (int64_t i = 0; i < count; ++i)
    if (there(indices[i])) terms[ends[indices[i] + 1]++] = i;
  opforge::parallel_for(0, vocab, (1 << 14) / (dim + 1) + 1, [&](int64_t first, int64_t last) {
    std::vector<float> sums(dim);
    for (int64_t r = first; r < last; ++r) {
      const int64_t begin = ends[r], end = ends[r + 1];
      T* out = dweight + r * dim;
      if (end - begin == 0) {
        std::fill_n(out, dim, T());
      } else if (end - begin == 1) {
        std::copy_n(dy + terms[begin] * dim, dim, out);
      } else {
        std::fill(sums.begin(), sums.end(), 0.0f);
        for (int64_t t = begin; t < end; ++t) {
          const T* term = dy + terms[t] * dim;
#pragma omp simd
          for (int64_t c = 0; c < dim; ++c) sums[c] += opforge::load_as_float(term[c]);
        }
        opforge::convert_from_float(sums.data(), out, dim);
      }
    }
  });
}

void embedding_backward(opforge::TensorView weight, opforge::TensorView indices, opforge::TensorView dy,
                        opforge::TensorView dweight, int64_t padding_idx) {
  opforge::check_embedding({"dweight", dweight}, {"indices", indices}, {"dy", dy});
  OPFORGE_CHECK_SAME_SHAPE(weight, dweight);
  OPFORGE_CHECK_CONTIGUOUS(dweight);
  OPFORGE_DISPATCH_DTYPE(dy, T,
                         add(opforge::data<const int64_t>(indices), indices.numel(), opforge::data<const T>(dy),
                             opforge::data<T>(dweight), dweight.size(0), dweight.size(1), padding_idx));
}

}  // namespace

OPFORGE_EXPORT(run, embedding_backward)
