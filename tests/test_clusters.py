"""Blocks of a cluster in the CUDA emulator: their barrier, stores into each other's shared memory, what goes wrong with either."""

import shutil

import pytest
import torch

from opforge.backends import native
from opforge.backends.cuda import Cuda
from opforge.core.implementation import Config, Implementation

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")

# every block sends its number to the next one of its cluster
RING = """
#include "opforge/groups.h"
namespace {
__global__ void ring(float* y) {
  OPFORGE_DYNAMIC_SHARED(float, dynamic);
  __shared__ float fixed;
  float* box = BOX;
  const int blocks = opforge::cluster_blocks(), block = opforge::cluster_block();
  BEGIN
  if (threadIdx.x == 40) opforge::store_in_block(box, TARGET, static_cast<float>(blockIdx.x));
  END
  if (threadIdx.x == 0) y[blockIdx.x] = *box;
}
void launch(opforge::TensorView y) {
  OPFORGE_LAUNCH_CLUSTERS(ring, 3, 4, 64, 16, opforge::current_stream(y), opforge::data<float>(y));
}
}
OPFORGE_EXPORT(run, launch)
"""
RIGHT = {"BOX": "&fixed", "BEGIN": "opforge::cluster_barrier();", "TARGET": "(block + 1) % blocks", "END": "opforge::cluster_barrier();"}


def run(folder, **changes):
    text = RING
    for name, code in {**RIGHT, **changes}.items():
        text = text.replace(name, code)
    source = folder / "cuda_ring.cu"
    source.write_text(text)
    kernel = Implementation(name="cuda_ring", operator="ring", backend="cuda", source=source, idea="")
    y = torch.full((12,), float("nan"))
    native.entry_point(native.library(kernel, Config(), Cuda().toolchain("cpu")).path)(y)
    return y


@pytest.mark.parametrize("box", ["&fixed", "dynamic + 3"], ids=["fixed", "dynamic"])
def test_a_store_reaches_the_same_place_in_another_block(tmp_path, box):
    """Shared memory of both kinds belongs to one block each, and to no other cluster's."""
    assert run(tmp_path, BOX=box).tolist() == [3, 0, 1, 2, 7, 4, 5, 6, 11, 8, 9, 10]


def test_a_missing_barrier_shows(tmp_path):
    """Read before the other block has written: NaN, as shared memory is at the start."""
    assert run(tmp_path, END="").isnan().any()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"END": "if (block != 3) opforge::cluster_barrier();"}, "1 of the 4 blocks of a cluster ended"),
        ({"END": "if (threadIdx.x < 32) opforge::cluster_barrier();"}, "waits at the cluster barrier"),
        ({"TARGET": "block + 1"}, "a cluster has no block 4"),
        ({"BOX": "y"}, "outside shared memory"),
    ],
    ids=["a block that does not come", "half a block", "no such block", "global memory"],
)
def test_mistakes_end_with_words(tmp_path, changes, words):
    """On a GPU each of these hangs, or corrupts what lies elsewhere."""
    with pytest.raises(RuntimeError, match=words):
        run(tmp_path, **changes)
