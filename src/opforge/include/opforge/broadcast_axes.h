// opforge/broadcast_axes.h - the axes of a broadcast, collapsed: on the host, for .cu and .cpp files.
#ifndef OPFORGE_BROADCAST_AXES_H_
#define OPFORGE_BROADCAST_AXES_H_

#include <cstdint>

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

}  // namespace opforge

#endif  // OPFORGE_BROADCAST_AXES_H_
