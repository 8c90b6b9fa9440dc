"""A matrix product through opforge: called, held against float64, with the implementation that was taken and why.

    python examples/basic_gemm.py [M N K]

To have a kernel of opforge's taken where it is faster: opforge qualify matmul
"""

from __future__ import annotations

import sys

import torch

from opforge import ops


def main(m: int = 256, n: int = 384, k: int = 512) -> float:
    """Multiplies a [m, k] by b [k, n]; the largest error over the sums of |a| |b| that it came from."""
    device = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else "cpu"
    a, b = torch.randn(m, k, device=device), torch.randn(k, n, device=device)
    c = ops.matmul(a, b)
    print(ops.matmul.why(a, b))
    exact, sizes = a.double() @ b.double(), a.double().abs() @ b.double().abs()
    error = float(((c.double() - exact).abs() / sizes).max())
    print(f"[{m}, {k}] x [{k}, {n}] on {a.device}: largest error {error:.1e} of what was added up")
    return error


if __name__ == "__main__":
    main(*map(int, sys.argv[1:4]))
