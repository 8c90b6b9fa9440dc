"""Offsets, lengths and pages that name rows which aren't there: an error, or rows of NaN; never memory outside."""

import os
import subprocess
import sys
from functools import partial

import pytest
import torch

from opforge import get_kernel


def numbers(*values):
    return torch.tensor(values, dtype=torch.int32)


def packed(dtype=torch.float32):
    torch.manual_seed(0)
    return tuple(torch.randn(rows, heads, 8).to(dtype) for rows, heads in ((6, 4), (9, 2), (9, 2)))


GOOD = (numbers(0, 3, 5), numbers(0, 2, 6))
BAD = {
    "negative": (numbers(-1, 3, 6), numbers(-1, 3, 9)),
    "begins at 1": (numbers(1, 3, 6), numbers(0, 3, 9)),
    "decreases": (numbers(0, 3, 2), numbers(0, 3, 9)),
    "ends beyond": (numbers(0, 3, 700), numbers(0, 3, 9)),
    "far": (numbers(0, 2**31 - 1, 6), numbers(0, 3, 9)),
    "keys decrease": (numbers(0, 3, 6), numbers(0, 5, 2)),
    "keys end beyond": (numbers(0, 3, 6), numbers(0, 3, 900)),
    "keys are negative": (numbers(0, 3, 6), numbers(-5, 3, 9)),
}


@pytest.mark.parametrize("backend", ["torch", "cpp"])
def test_offsets_are_checked_on_the_host(backend):
    for cu_q, cu_k in BAD.values():
        with pytest.raises(ValueError, match="offsets begin with 0"):
            get_kernel(backend, "attention_varlen")(*packed(), cu_q, cu_k)


@pytest.mark.parametrize("backend", ["torch", "cpp"])
def test_rows_behind_the_last_offset_are_zero(backend):
    """They are of no sequence: 0, and -inf for the log-sum-exp, as the definition has them."""
    out, lse = get_kernel(backend, "attention_varlen")(*packed(), *GOOD)
    assert out[:5].abs().amin(dim=(1, 2)).min() > 0
    assert (out[5] == 0).all() and (lse[:, 5] == -torch.inf).all() and lse[:, :5].isfinite().all()


TABLE, LENGTHS = numbers(0, 2, 1, 3).view(2, 2), numbers(3, 4)
BAD_PAGES = {
    "negative length": (TABLE, numbers(-1, 4)),
    "beyond the room": (TABLE, numbers(5, 4)),
    "largest length": (TABLE, numbers(2**31 - 1, 4)),
    "no such page": (numbers(0, 7, 1, 3).view(2, 2), LENGTHS),
    "negative page": (numbers(-2, 2, 1, 3).view(2, 2), LENGTHS),
}
UNSEEN = numbers(0, 77, 1, 3).view(2, 2), numbers(2, 4)
"""Entry 77 is behind the last key: nobody sees it."""


def cache(dtype=torch.float32):
    torch.manual_seed(0)
    return tuple(torch.randn(*shape).to(dtype) for shape in ((2, 4, 1, 16), (4, 2, 2, 16), (4, 2, 2, 16)))


@pytest.mark.parametrize("backend", ["torch", "cpp"])
def test_pages_and_lengths_are_checked_on_the_host(backend):
    kernel = get_kernel(backend, "attention_decode")
    for table, lengths in BAD_PAGES.values():
        with pytest.raises(ValueError, match=r"room for 4 keys|there are 4 pages"):
            kernel(*cache(), table, lengths)
    assert kernel(*cache(), *UNSEEN)[0].isfinite().all()


def check_pages(backend, dtype, device="cpu"):
    """The first sequence is NaN, the second what it is."""
    raw = get_kernel(backend, "attention_decode")

    def kernel(*tensors, **how):
        return raw(*(tensor.to(device) for tensor in tensors), **how)

    for invariant in (False, True):
        right = kernel(*cache(dtype), TABLE, LENGTHS, batch_invariant=invariant)
        assert right[0].isfinite().all()
        for name, (table, lengths) in BAD_PAGES.items():
            for result, good in zip(
                kernel(*cache(dtype), table, lengths, batch_invariant=invariant), right, strict=True
            ):
                assert result[0].isnan().all(), name
                assert torch.equal(result[1], good[1]), name
        assert kernel(*cache(dtype), *UNSEEN, batch_invariant=invariant)[0].isfinite().all()


def test_cuda_reads_no_page_that_is_not_there():
    check_pages("cuda", torch.float16)


def on(device, kernel, *tensors):
    return tuple(result.cpu() for result in kernel(*(tensor.to(device) for tensor in tensors)))


def check_triton(device="cpu"):
    """What kernels for a GPU do, whose offsets nobody reads on the host."""
    check_pages("triton", torch.float32, device)
    q, k, v = packed()
    forward, backward = (
        partial(on, device, get_kernel("triton", name)) for name in ("attention_varlen", "attention_varlen_backward")
    )
    out, lse = forward(q, k, v, *GOOD)
    right = get_kernel("torch", "attention_varlen")(q, k, v, *GOOD)
    torch.testing.assert_close((out, lse), right)
    given = (q, k, v, out, lse, torch.randn_like(out), torch.randn_like(lse))
    found = backward(*given, *GOOD)
    torch.testing.assert_close(found, get_kernel("torch", "attention_varlen_backward")(*given, *GOOD))
    assert all((gradient[-1] == 0).all() for gradient in found)
    for name, (cu_q, cu_k) in BAD.items():
        wrong_keys = name.startswith("keys")
        rows = {"keys are negative": [0, 1, 2]}.get(name, [3, 4, 5]) if wrong_keys else list(range(6))
        others = [row for row in range(6) if row not in rows]
        out, lse = forward(q, k, v, cu_q, cu_k)
        assert out[rows].isnan().all() and lse[:, rows].isnan().all(), name
        assert out[others].isfinite().all(), name
        assert backward(*given, cu_q, cu_k)[0][rows].isnan().all(), name


def test_triton_reads_and_writes_no_row_that_is_not_there():
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    ran = subprocess.run([sys.executable, __file__], env=environment, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr[-2000:]


def test_gradients_of_packed_sequences_on_tensor_cores():
    """Emulated: two sequences and a row of none, several blocks of keys, and offsets that say nothing."""
    torch.manual_seed(0)
    q, k, v = (torch.randn(rows, heads, 64).half() for rows, heads in ((90, 2), (140, 1), (140, 1)))
    offsets, how = (numbers(0, 70, 70, 89), numbers(0, 30, 60, 140)), {"causal": True, "alignment": "bottom_right"}
    out, lse = get_kernel("torch", "attention_varlen", "torch_definition")(q, k, v, *offsets, **how)
    given = (q, k, v, out, lse, torch.randn_like(out), torch.randn_like(lse))
    kernel = get_kernel("cuda", "attention_varlen_backward")
    right = get_kernel("torch", "attention_varlen_backward")(*given, *offsets, **how)
    torch.testing.assert_close(kernel(*given, *offsets, **how), right, rtol=2e-3, atol=1e-3)
    assert kernel(*given, numbers(0, 70, 60, 89), offsets[1])[0].isnan().all()
    dk = kernel(*given, offsets[0], numbers(0, 30, 60, 141))[1]
    assert dk.isnan().all()


@pytest.mark.gpu
def test_no_memory_outside_on_a_gpu():
    check_pages("cuda", torch.float16, "cuda")
    check_triton("cuda")


if __name__ == "__main__":
    import opforge.backends.triton_interpreter  # noqa: F401

    check_triton()
