"""Small tensors on one thread: a pool of threads that share a busy machine costs ten times what it brings."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

WORTH_A_POOL = 1 << 20


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
