// opforge/rows/scans.h - each element of all up to it, along a row: running sums, products and extremes, on the CPU.
#ifndef OPFORGE_ROWS_SCANS_H_
#define OPFORGE_ROWS_SCANS_H_

#include <cmath>

#include "opforge/arch/host_lanes.h"
#include "opforge/rows/extremes.h"

namespace opforge {

/// out[i] = combine(out[i - 1], f(x[i], in[i]...)), from `start`. `Running` is the type that is carried along.
template <typename Running, typename Combine, typename F, typename T, typename... In>
inline void scan_map(int64_t n, float* out, Running start, const Combine& combine, const F& f, const T* x, const In*... in) {
  Running running = start;
  for (int64_t i = 0; i < n; ++i) {
    running = combine(running, f(load_as_float(x[i]), load_as_float(in[i])...));
    out[i] = static_cast<float>(running);
  }
}

/// Running sums of f(x[i], in[i]...). The sum is carried in double: as long as the row is, each has one rounding.
template <typename F, typename... In>
inline void cumsum_map(int64_t n, float* out, const F& f, const In*... in) {
  scan_map(n, out, 0.0, [](double a, float b) { return a + b; }, f, in...);
}
/// Running products, carried in double.
template <typename F, typename... In>
inline void cumprod_map(int64_t n, float* out, const F& f, const In*... in) {
  scan_map(n, out, 1.0, [](double a, float b) { return a * b; }, f, in...);
}
/// The largest until now; NaN from the first NaN on.
template <typename F, typename... In>
inline void cummax_map(int64_t n, float* out, const F& f, const In*... in) {
  scan_map(n, out, -INFINITY, [](float a, float b) { return maximum(a, b); }, f, in...);
}
/// The smallest until now; NaN from the first NaN on.
template <typename F, typename... In>
inline void cummin_map(int64_t n, float* out, const F& f, const In*... in) {
  scan_map(n, out, INFINITY, [](float a, float b) { return minimum(a, b); }, f, in...);
}

}  // namespace opforge

#endif  // OPFORGE_ROWS_SCANS_H_
