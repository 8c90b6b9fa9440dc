// opforge/targets.h - checks of a vector of class indices, one for each row of scores.
#ifndef OPFORGE_TARGETS_H_
#define OPFORGE_TARGETS_H_

#include "opforge/rows.h"

/// Checks that a tensor argument is a contiguous vector of int64, one for each row of another.
#define OPFORGE_CHECK_TARGETS(vector, tensor)                                                             \
  do {                                                                                                    \
    OPFORGE_CHECK_NDIM(vector, 1);                                                                        \
    OPFORGE_CHECK_CONTIGUOUS(vector);                                                                     \
    OPFORGE_CHECK((vector).size(0) == (tensor).size(0), ValueError,                                       \
                  #vector " must have one element for each row of " #tensor " (", (vector).size(0), " and ", \
                  (tensor).size(0), ")");                                                                 \
    OPFORGE_CHECK((vector).dtype().code == kDLInt && (vector).dtype().bits == 64, TypeError,              \
                  #vector " must be int64 (got ", ::opforge::dtype_name((vector).dtype()), ")");          \
  } while (0)

#endif  // OPFORGE_TARGETS_H_
