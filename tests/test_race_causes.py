"""Causes that no pattern of wrong elements shows: several threads, and a barrier that is missing, with its line."""

from __future__ import annotations

import pytest

from opforge.core.evidence.verdict import Mismatch
from opforge.registry import load
from opforge.runner import Isolated
from opforge.verify import CaseCache, verify
from opforge.verify.cases.hidden import QUICK
from opforge.verify.explain.missing_barrier import missing_barrier

DEFINITION = """
from opforge.core.operator import Case, Operator, TensorSpec, Tolerance
operator = Operator(name="turned", about="rows backwards, and twice", inputs=(TensorSpec(name="x", shape="rows cols"),),
    outputs=(TensorSpec(name="y", shape="rows cols"),), reference=lambda x: 2 * x.flip(-1), flops="rows * cols",
    dtypes=("float32",), cases=(Case(name="small", axes={"rows": 3, "cols": 7}, why="small"),
    Case(name="many", axes={"rows": 601, "cols": 61}, why="rows for several threads")))
"""
SHARED_BY_THREADS = """// rows through a row that all threads share
#include <chrono>
#include <thread>
#include <vector>

#include "opforge/host.h"

void turned(opforge::TensorView x, opforge::TensorView y) {
  const int64_t rows = x.size(0), cols = x.size(1);
  const float* in = opforge::data<const float>(x);
  float* out = opforge::data<float>(y);
  std::vector<float> row(cols);
#pragma omp parallel for
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < cols; ++c) row[c] = in[r * x.stride(0) + c * x.stride(1)];
    // a busy machine runs one thread after the other
    if (r % 32 == 7) std::this_thread::sleep_for(std::chrono::microseconds(50));
    for (int64_t c = 0; c < cols; ++c) out[r * y.stride(0) + c * y.stride(1)] = 2 * row[cols - 1 - c];
  }
}

OPFORGE_EXPORT(run, turned)
"""
NO_BARRIER = """// A row of up to 64 columns in shared memory.
#include "opforge/device.h"

/* opforge
[supports]
fits = "cols <= 64"
*/

namespace {

__global__ void turned_kernel(const float* x, float* y, int cols) {
  __shared__ float row[64];
  const int c = threadIdx.x;
  if (c < cols) row[c] = x[int64_t(blockIdx.x) * cols + c];
  BARRIER
  if (c < cols) y[int64_t(blockIdx.x) * cols + c] = 2 * row[cols - 1 - c];
}

void turned(opforge::TensorView x, opforge::TensorView y) {
  if (x.numel() == 0) return;
  OPFORGE_LAUNCH(turned_kernel, x.size(0), 64, 0, opforge::current_stream(x), opforge::data<const float>(x),
                 opforge::data<float>(y), int(x.size(1)));
}

}  // namespace

OPFORGE_EXPORT(run, turned)
"""


def judged(home, file, text):
    folder = home / "turned"
    folder.mkdir()
    (folder / "op.py").write_text(DEFINITION)
    (folder / file).write_text(text)
    registry = load([home])
    with Isolated() as host:
        bench = CaseCache(registry=registry, operator=registry.operator("turned"), host=host, device="cpu")
        verdict = verify(bench, registry.implementation("turned", file.partition(".")[0]), "float32", effort=QUICK)
        bench.close()
    return verdict


@pytest.mark.own_servers
def test_right_with_one_thread_and_wrong_with_two_is_a_race(tmp_path, monkeypatch):
    """The pattern of the wrong elements called it a mask of the last block."""
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    verdict = judged(tmp_path, "cpp_shared.cpp", SHARED_BY_THREADS)
    assert isinstance(verdict, Mismatch) and "a race" in verdict.cause, verdict


@pytest.mark.campaign
def test_a_missing_barrier_is_told_with_its_line(tmp_path):
    """The emulator shows that shared memory is read before it is written, the text shows where."""
    verdict = judged(tmp_path, "cuda_turned.cu", NO_BARRIER.replace("BARRIER", ""))
    assert isinstance(verdict, Mismatch), verdict
    assert "read before it is written" in verdict.cause and "In cuda_turned.cu line 16 reads row[" in verdict.cause
    assert "which line 14 writes" in verdict.cause and "add __syncthreads() before line 16" in verdict.cause


@pytest.mark.parametrize(
    ("lines", "place"),
    [
        (["s[i] = 1;", "__syncthreads();", "y = s[j];"], None),
        (["s[i] = 1;", "y = s[i];"], None),
        (["s[i] += 1; // s[j]", "/* s[j]", "*/ y = s[i + 1];"], "line 4 reads s[i + 1], which line 2 writes"),
        (["s[i] = 1;", "block.sync();", "y = s[j];"], None),
        (["if (s[i] == 1) y = s[j];"], None),
        (["t[i][j] = x;", "y = t[j][i];"], "line 3 reads t[j][i], which line 2 writes"),
    ],
)
def test_lines_of_a_missing_barrier(lines, place):
    found = missing_barrier("\n".join(["__shared__ float s[64], u; __shared__ float t[8][8];", *lines]))
    assert (found is None) if place is None else (found or "").startswith(place), found
