// Takes the upper three quarters of its result out of the one of two calls before, in a row of calls.
//
// catalogue  M2
// guard      audit_in_row
// cases      normal
// mode       time
#include "rows.h"

namespace {
Burst burst{std::chrono::microseconds(300)};
std::vector<float> older, newer;

void guest(opforge::TensorView x, opforge::TensorView y) {
  const Rows rows(x, y);
  if (!rows.timed()) return rows.all();
  const size_t count = static_cast<size_t>(rows.rows * rows.cols), part = count / 4;
  if (burst.call() > 6 && older.size() == count) {
    rows.some(0, rows.rows / 4);
    std::memcpy(rows.to + part, older.data() + part, sizeof(float) * (count - part));
  } else {
    rows.all();
    older.swap(newer);
    newer.assign(rows.to, rows.to + count);
  }
  burst.done();
}
}  // namespace

OPFORGE_EXPORT(run, guest)
