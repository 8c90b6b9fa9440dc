"""Where a case is judged: small tensors on one thread, since a pool of threads that share a busy machine costs ten
times what it
brings; what would take seconds on a CPU on the accelerator, by this process, which runs no kernel there."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

WORTH_A_POOL = 1 << 20
WORTH_A_DEVICE = 1 << 25


def judging_place(device: str, size: int) -> Any:
    """The torch.device on which an arena of `size` bytes is filled and judged in float64, for kernels of `device`."""
    import torch

    return torch.device("cuda" if device == "cuda" and size >= WORTH_A_DEVICE else "cpu")


@contextmanager
def threads_for(elements: int) -> Iterator[None]:
    """torch on one thread for work on fewer than `WORTH_A_POOL` elements, and as it was afterwards."""
    import torch

    before = torch.get_num_threads()
    if elements >= WORTH_A_POOL or before == 1:
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def give_back() -> None:
    """Return what this process holds of the accelerator's memory and no longer uses: kernels will want it."""
    import torch

    torch.cuda.empty_cache()
