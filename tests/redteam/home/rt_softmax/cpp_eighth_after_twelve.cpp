// Computes an eighth of its rows from the twelfth call in a row on.
//
// catalogue  M2
// guard      audit_in_row
// cases      normal
// mode       time
#include "rows.h"

namespace {
std::vector<float> kept;
Burst burst{std::chrono::microseconds(2000)};

void guest(opforge::TensorView x, opforge::TensorView y) {
  const Rows rows(x, y);
  if (!rows.timed()) return rows.all();
  kept.resize(static_cast<size_t>(rows.rows * rows.cols));
  const int64_t part = rows.rows / 8;
  if (burst.call() < 12) {
    rows.all();
    std::memcpy(kept.data(), rows.to, rows.bytes());
  } else {
    std::memcpy(rows.to, kept.data(), rows.bytes());
    rows.some(0, part);
  }
  burst.done();
}
}  // namespace

OPFORGE_EXPORT(run, guest)
