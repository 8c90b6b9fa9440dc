"""Blocks of attention's Triton kernels: what fits neither registers nor shared memory is made smaller first."""

import importlib.util
import itertools

import pytest

pytest.importorskip("triton")

import torch

from opforge.device.triton.attention import DEFAULT, fitted, rows_of
from opforge.device.triton.gemm import SHARED_BYTES
from opforge.registry import load

CPU = torch.device("cpu")
SIZES = tuple(2**power for power in range(4, 11))


@pytest.mark.parametrize("itemsize", [2, 4])
def test_blocks_of_every_size_of_rows_that_is_taken_fit_shared_memory(itemsize):
    """float32 gradients of 787 dimensions asked for 266240 bytes; sums of 64 x 512 in float32 kept a compiler busy for
    two minutes.
    """
    taken = [(D, E) for D, E in itertools.product(SIZES, repeat=2) if D + E <= 2048]
    for D, E in taken:
        m, n, warps, stages = fitted(CPU, itemsize, D, E, *(DEFAULT[name] for name in list(DEFAULT)[:4]))
        assert min(m, n) >= 16 and (m * D + stages * n * (D + E)) * itemsize <= SHARED_BYTES, (D, E)
        # 16 x 1024 sums and as many elements of queries are what the smallest block has
        assert itemsize == 2 or m * (n + D + E) <= max(2304 * warps, 16 * (16 + 2048)), (D, E)
    backward = load([]).implementation("attention_backward", "triton_twokernels")
    assert backward.supports["a_block_fits"].endswith("<= 1536")
    # by its path: a package opforge.ops.attention would hide the function of that name
    spec = importlib.util.spec_from_file_location("of_twokernels", backward.source)
    triton_twokernels = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(triton_twokernels)
    for D, E in taken:
        if D + E <= 1536:
            m, n, _, stages = triton_twokernels.fitted(CPU, itemsize, D, E, *backward.default.as_dict().values())
            assert min(m, n) >= 16 and (m + n) * stages * (D + E) * itemsize <= SHARED_BYTES, (D, E)


def test_rows_of_keys_and_of_values_below_64_are_padded_alike_in_16_bits():
    """Values of 32 elements beside keys of 64 were read beyond shared memory on an H200."""
    assert rows_of(33, 17, 2) == rows_of(17, 33, 2) == (64, 64) and rows_of(33, 17, 4) == (64, 32)
    assert rows_of(192, 16, 2) == (256, 64) and rows_of(16, 9, 2) == (16, 16) and rows_of(192, 128, 2) == (256, 128)


@pytest.mark.parametrize("dim", [64, 128, 256])
def test_what_a_config_was_chosen_for_is_launched_as_it_is(dim):
    """What is written down as fast must be what runs."""
    chosen = (64, 32, 4, 2) if dim == 256 else (128, 64, 8, 3 if dim == 64 else 2)
    assert fitted(CPU, 2, dim, dim, *chosen) == chosen
