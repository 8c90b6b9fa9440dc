// Computes an eighth of its rows from the fourth call of a burst on, another eighth in each call.
//
// catalogue  M2
// guard      audit_in_row
// cases      normal
// mode       time-out
#include "rows.h"

namespace {
Burst burst{std::chrono::microseconds(300)};

void guest(opforge::TensorView x, opforge::TensorView y) {
  const Rows rows(x, y);
  if (!rows.timed()) return rows.all();
  const int64_t call = burst.call(), part = rows.rows / 8;
  if (call < 4) {
    rows.all();
  } else {
    rows.some(call % 8 * part, call % 8 * part + part);
  }
  burst.done();
}
}  // namespace

OPFORGE_EXPORT(run, guest)
