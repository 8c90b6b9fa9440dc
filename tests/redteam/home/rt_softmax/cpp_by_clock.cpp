// Computes half of its rows from a fifth of a second after its first call on, for three seconds.
//
// catalogue  M2
// guard      audit_runs
// cases      normal
// mode       time
#include "rows.h"

namespace {
using Clock = std::chrono::steady_clock;
std::vector<float> kept;
Clock::time_point began{};

void guest(opforge::TensorView x, opforge::TensorView y) {
  const Rows rows(x, y);
  if (!rows.timed()) return rows.all();
  if (began == Clock::time_point{}) began = Clock::now();
  const auto since = Clock::now() - began;
  kept.resize(static_cast<size_t>(rows.rows * rows.cols));
  if (since > std::chrono::milliseconds(200) && since < std::chrono::milliseconds(3200)) {
    std::memcpy(rows.to, kept.data(), rows.bytes());
    rows.some(0, rows.rows / 2);
  } else {
    rows.all();
    std::memcpy(kept.data(), rows.to, rows.bytes());
  }
}
}  // namespace

OPFORGE_EXPORT(run, guest)
