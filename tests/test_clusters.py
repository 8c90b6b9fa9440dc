"""Blocks of a cluster in the CUDA emulator: their barrier, stores into each other's shared memory, what goes wrong with
either.
"""

import shutil

import pytest
import torch

from opforge.backends import native
from opforge.backends.cuda import Cuda
from opforge.core.definition.implementation import Config, Implementation

# one worker compiles the ring, and asks all of it
pytestmark = [
    pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++"),
    pytest.mark.xdist_group("clusters"),
]

# every block sends its number to the next one of its cluster; one mistake a MODE, so that all are compiled at once
SOURCE = """
#include "opforge/arch/groups.h"
namespace {
enum Mode { kFixed, kDynamic, kNoBarrier, kABlockEnds, kHalfABlock, kNoSuchBlock, kGlobal };
template <int MODE>
__global__ void ring(float* y) {
  OPFORGE_DYNAMIC_SHARED(float, dynamic);
  __shared__ float fixed;
  float* box = MODE == kDynamic ? dynamic + 3 : MODE == kGlobal ? y : &fixed;
  const int blocks = opforge::cluster_blocks(), block = opforge::cluster_block();
  opforge::cluster_barrier();
  const int target = MODE == kNoSuchBlock ? block + 1 : (block + 1) % blocks;
  if (threadIdx.x == 40) opforge::store_in_block(box, target, static_cast<float>(blockIdx.x));
  const bool waits = MODE == kABlockEnds ? block != 3 : MODE == kHalfABlock ? threadIdx.x < 32 : MODE != kNoBarrier;
  if (waits) opforge::cluster_barrier();
  if (threadIdx.x == 0) y[blockIdx.x] = *box;
}
template <int MODE>
void one(opforge::TensorView y) {
  OPFORGE_LAUNCH_CLUSTERS(ring<MODE>, 3, 4, 64, 16, opforge::current_stream(y), opforge::data<float>(y));
}
void launch(opforge::TensorView y, int64_t mode) {
  switch (mode) {
    case kFixed: return one<kFixed>(y);
    case kDynamic: return one<kDynamic>(y);
    case kNoBarrier: return one<kNoBarrier>(y);
    case kABlockEnds: return one<kABlockEnds>(y);
    case kHalfABlock: return one<kHalfABlock>(y);
    case kNoSuchBlock: return one<kNoSuchBlock>(y);
    case kGlobal: return one<kGlobal>(y);
  }
}
}
OPFORGE_EXPORT(run, launch)
"""
FIXED, DYNAMIC, NO_BARRIER, A_BLOCK_ENDS, HALF_A_BLOCK, NO_SUCH_BLOCK, GLOBAL = range(7)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """run(mode): what the ring of that mode writes."""
    source = tmp_path_factory.mktemp("ring") / "cuda_ring.cu"
    source.write_text(SOURCE)
    kernel = Implementation(name="cuda_ring", operator="ring", backend="cuda", source=source, idea="")
    ring = native.entry_point(native.library(kernel, Config(), Cuda().toolchain("cpu")).path)

    def of(mode):
        y = torch.full((12,), float("nan"))
        ring(y, mode)
        return y

    return of


@pytest.mark.parametrize("mode", [FIXED, DYNAMIC], ids=["fixed", "dynamic"])
def test_a_store_reaches_the_same_place_in_another_block(run, mode):
    """Shared memory of both kinds belongs to one block each, and to no other cluster's."""
    assert run(mode).tolist() == [3, 0, 1, 2, 7, 4, 5, 6, 11, 8, 9, 10]


def test_a_missing_barrier_shows(run):
    """Read before the other block has written: NaN, as shared memory is at the start."""
    assert run(NO_BARRIER).isnan().any()


@pytest.mark.parametrize(
    ("mode", "words"),
    [
        (A_BLOCK_ENDS, "1 of the 4 blocks of a cluster ended"),
        (HALF_A_BLOCK, "waits at the cluster barrier"),
        (NO_SUCH_BLOCK, "a cluster has no block 4"),
        (GLOBAL, "outside shared memory"),
    ],
    ids=["a block that does not come", "half a block", "no such block", "global memory"],
)
def test_mistakes_end_with_words(run, mode, words):
    """On a GPU each of these hangs, or corrupts what lies elsewhere."""
    with pytest.raises(RuntimeError, match=words):
        run(mode)
