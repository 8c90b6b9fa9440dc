// Hands the second half of its rows to a thread of its own once calls follow each other.
//
// catalogue  M2
// guard      audit_in_row
// cases      normal
// mode       time-out
#include <condition_variable>
#include <mutex>
#include <thread>

#include "rows.h"

namespace {
Burst burst{std::chrono::microseconds(5000)};

struct Helper {
  std::mutex lock;
  std::condition_variable wake;
  std::vector<Rows> work;
  Helper() {
    std::thread([this] {
      for (;;) {
        std::unique_lock<std::mutex> held(lock);
        wake.wait(held, [this] { return !work.empty(); });
        const Rows rows = work.back();
        work.clear();
        held.unlock();
        rows.some(rows.rows / 2, rows.rows);
      }
    }).detach();
  }
};

void guest(opforge::TensorView x, opforge::TensorView y) {
  const Rows rows(x, y);
  if (!rows.timed()) return rows.all();
  if (burst.call() < 4) {
    rows.all();
  } else {
    static Helper& helper = *new Helper;
    {
      const std::lock_guard<std::mutex> held(helper.lock);
      helper.work.push_back(rows);
    }
    helper.wake.notify_one();
    rows.some(0, rows.rows / 2);
  }
  burst.done();
}
}  // namespace

OPFORGE_EXPORT(run, guest)
