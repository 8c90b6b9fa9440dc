"""Rows in registers on the CPU (opforge/arch/host_lanes.h): every width around a register's, on the instruction sets
that a user may have.
"""

from __future__ import annotations

import ctypes
import platform
import shutil
import subprocess
from pathlib import Path

import pytest

from opforge.backends import native
from opforge.backends.cpp import FLAGS, host_compiler

SOURCE = """
#include <cmath>
#include <vector>
#include "opforge/arch/host_lanes.h"

namespace {

bool near(double a, double b, double bound) { return std::fabs(a - b) <= bound * (1.0 + std::fabs(b)); }

// the first width at which an answer is wrong, or -1. Values are small multiples of 1/8, which every dtype holds
template <typename T>
int64_t first_wrong(double rounding) {
  for (int64_t n = 0; n < 140; ++n) {
    // exactly as long as the row: a sanitizer, or a guard, sees what reaches beyond
    std::vector<T> x(n), y(n), out(n);
    double sum = 0.0, top = -INFINITY, squares = 0.0;
    for (int64_t i = 0; i < n; ++i) {
      const float a = float((i * 7) % 23 - 30) / 8.0f, b = float((i * 5) % 11 - 4) / 8.0f;
      x[i] = T(a);
      y[i] = T(b);
      sum += double(a) * b + 1.0;
      squares += double(a) * a;
      top = a > top ? a : top;
    }
    using namespace opforge;
    // f(0, 0) is 1: what lies behind the row must not be counted
    if (!near(sum_map(n, [](float a, float b) { return a * b + 1.0f; }, x.data(), y.data()), sum, 1e-6)) return n;
    if (largest(n, x.data()) != float(top)) return n;
    map_row(n, out.data(), [](float a, float b) { return a - b; }, x.data(), y.data());
    for (int64_t i = 0; i < n; ++i)
      if (!near(load_as_float(out[i]), load_as_float(x[i]) - load_as_float(y[i]), rounding)) return n;
    std::vector<float> kept(kept_floats(n));
    if (!near(keep_sum(n, kept.data(), [](float a) { return a * a; }, x.data()), squares, 1e-6)) return n;
    map_kept(n, out.data(), [](float term) { return term * 0.5f; }, kept.data());
    for (int64_t i = 0; i < n; ++i)
      if (!near(load_as_float(out[i]), 0.5 * load_as_float(x[i]) * load_as_float(x[i]), rounding)) return n;
  }
  return -1;
}

}  // namespace

extern "C" __attribute__((visibility("default"))) int64_t first_wrong_width(int dtype) {
  return dtype == 0   ? first_wrong<float>(1e-7)
         : dtype == 1 ? first_wrong<opforge::Float16>(1.0 / 2048)
                      : first_wrong<opforge::BFloat16>(1.0 / 256);
}
"""


def _has(flag: str) -> bool:
    """Whether this processor says that it has an extension."""
    facts = Path("/proc/cpuinfo")
    return facts.is_file() and f" {flag} " in f"{facts.read_text()} "


@pytest.mark.skipif(
    shutil.which(host_compiler()) is None, reason="no C++ compiler on PATH; install one with: apt-get install g++"
)
@pytest.mark.parametrize("march", ["native", "haswell", "x86-64-v2"])
def test_every_width_is_summed_and_written_to_its_last_element(tmp_path, march):
    """A row that ends inside a register is read, and counted, no further; 16-bit rows go to other lanes on each
    instruction set.
    """
    if march != "native" and (platform.machine() != "x86_64" or not _has("avx2")):
        pytest.skip(f"this processor does not run code for {march}")
    source, library = tmp_path / "lanes.cpp", tmp_path / "lanes.so"
    source.write_text(SOURCE)
    includes = native.includes_of(source)
    flags = [f"-march={march}" if flag.startswith("-march") else flag for flag in FLAGS]
    # nothing here is called from elsewhere, so how wide vectors are passed without AVX is nobody's concern
    warnings = ["-Wall", "-Werror", "-Wno-psabi"]
    done = subprocess.run(
        [host_compiler(), *flags, *warnings, *includes, str(source), "-o", str(library)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-3000:]
    first_wrong_width = ctypes.CDLL(str(library)).first_wrong_width
    first_wrong_width.restype = ctypes.c_int64
    assert {name: first_wrong_width(number) for number, name in enumerate(("float32", "float16", "bfloat16"))} == {
        "float32": -1,
        "float16": -1,
        "bfloat16": -1,
    }
