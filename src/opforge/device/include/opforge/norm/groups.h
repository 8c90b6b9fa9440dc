// opforge/norm/groups.h - what group norm and its gradient check of their arguments, on the CPU and on the GPU.
#ifndef OPFORGE_NORM_GROUPS_H_
#define OPFORGE_NORM_GROUPS_H_

#include <initializer_list>

#include "opforge/abi/checks.h"

namespace opforge {

/// Sizes of [batch, channels, positions] in `groups` groups of `each` channels, whose `length` elements lie one after another.
struct GroupShape {
  int64_t batch, channels, positions, groups, each, length;
};

/// Raises ValueError or TypeError unless the images are contiguous [batch, channels, positions] of one shape, `groups` divides the channels, and each vector has an
/// element for a channel.
inline GroupShape check_groups(std::initializer_list<Named> images, std::initializer_list<Named> vectors,
                               int64_t groups) {
  check_same_layout(images);
  const Named& x = *images.begin();
  OPFORGE_CHECK(x.tensor.ndim() == 3, ValueError, x.name, " must have 3 dimensions (got ", x.tensor.ndim(), ")");
  OPFORGE_CHECK(groups >= 1 && x.tensor.size(1) % groups == 0, ValueError, groups, " groups must divide the ",
                x.tensor.size(1), " channels");
  for (const Named& vector : vectors) {
    check_same_kind(vector, x);
    OPFORGE_CHECK(vector.tensor.ndim() == 1 && vector.tensor.size(0) == x.tensor.size(1), ValueError, vector.name,
                  " must have an element for each of the ", x.tensor.size(1), " channels");
    OPFORGE_CHECK(vector.tensor.IsContiguous(), ValueError, vector.name, " must be contiguous");
  }
  const int64_t each = x.tensor.size(1) / groups;
  return {x.tensor.size(0), x.tensor.size(1), x.tensor.size(2), groups, each, each * x.tensor.size(2)};
}

}  // namespace opforge

#endif  // OPFORGE_NORM_GROUPS_H_
