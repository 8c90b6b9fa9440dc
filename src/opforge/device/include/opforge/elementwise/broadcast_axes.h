// opforge/elementwise/broadcast_axes.h - the axes of a broadcast, collapsed: on the host, for .cu and .cpp files.
#ifndef OPFORGE_BROADCAST_AXES_H_
#define OPFORGE_BROADCAST_AXES_H_

#include <cstdint>

#include "opforge/abi/checks.h"

namespace opforge {

/// Extents of x and strides of the tensors broadcast to it, in elements, 0 where they are broadcast; the last axis first.
struct BroadcastAxes {
  enum : int { kMost = 4 };
  int count = 0;
  int64_t size[kMost] = {1, 1, 1, 1};
  int64_t stride[kMost] = {0, 0, 0, 0};

  /// Adds the next axis outwards, or grows the outermost one where both can be walked as one.
  void push(int64_t extent, int64_t step) {
    if (extent == 1) return;
    if (count > 0 && step == stride[count - 1] * size[count - 1]) {
      size[count - 1] *= extent;
      return;
    }
    size[count] = extent;
    stride[count++] = step;
  }

  int64_t numel() const { return size[0] * size[1] * size[2] * size[3]; }

  /// Where the element i of x, counted over the axes from `first` on, meets the broadcast tensors.
  int64_t offset(int64_t i, int first = 0) const {
    int64_t found = 0;
    for (int k = first; k < count; ++k) {
      found += i % size[k] * stride[k];
      i /= size[k];
    }
    return found;
  }
};

/// The axes of b broadcast to x, both of four axes. Raises ValueError or TypeError unless b is contiguous, has the dtype and the device of x, and
/// each of its axes the extent of x's or 1.
inline BroadcastAxes axes_of_broadcast(const Named& x, const Named& b) {
  OPFORGE_CHECK(x.tensor.ndim() == 4 && b.tensor.ndim() == 4, ValueError, x.name, " and ", b.name, " must have 4 dimensions (got ", x.tensor.ndim(), " and ",
                b.tensor.ndim(), ")");
  OPFORGE_CHECK(b.tensor.IsContiguous(), ValueError, b.name, " must be contiguous");
  check_same_kind(b, x);
  BroadcastAxes axes;
  int64_t step = 1;
  for (int k = 3; k >= 0; --k) {
    const int64_t here = x.tensor.size(k), there = b.tensor.size(k);
    OPFORGE_CHECK(there == here || there == 1, ValueError, "axis ", k, " of ", b.name, " must be ", here, " or 1 (got ", there, ")");
    axes.push(here, there == 1 ? 0 : step);
    step *= there;
  }
  return axes;
}

/// The axes of vectors with one element for each channel of x, which has the axes batch, channels and positions. Raises ValueError or TypeError
/// unless they are contiguous, of the dtype and the device of x, and as long as it has channels.
inline BroadcastAxes axes_of_channels(const Named& x, std::initializer_list<Named> vectors) {
  OPFORGE_CHECK(x.tensor.ndim() == 3, ValueError, x.name, " must have 3 dimensions (got ", x.tensor.ndim(), ")");
  for (const Named& vector : vectors) {
    OPFORGE_CHECK(vector.tensor.ndim() == 1 && vector.tensor.size(0) == x.tensor.size(1), ValueError, vector.name, " must have ", x.tensor.size(1), " elements in one axis");
    OPFORGE_CHECK(vector.tensor.IsContiguous(), ValueError, vector.name, " must be contiguous");
    check_same_kind(vector, x);
  }
  BroadcastAxes axes;
  axes.push(x.tensor.size(2), 0);
  axes.push(x.tensor.size(1), 1);
  axes.push(x.tensor.size(0), 0);
  return axes;
}

}  // namespace opforge

#endif  // OPFORGE_BROADCAST_AXES_H_
