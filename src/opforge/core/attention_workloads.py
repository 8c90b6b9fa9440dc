"""Attention of published models and of published benchmarks: what forward and backward are timed at."""

from __future__ import annotations

from collections.abc import Iterator

from opforge.core.operator import Workload
from opforge.core.shapes import AxisValue

PAIRS = (
    "((nq * nk - nq * (nq - 1) // 2 if nk >= nq else nk * (nk + 1) // 2) if align == 'bottom_right' else "
    "min(nq, nk) * (min(nq, nk) + 1) // 2 + max(nq - nk, 0) * nk) if causal and window_left < 0 else "
    "nq * min(nk, (nk if window_left < 0 else window_left) + 1 + "
    "(0 if causal else nk if window_right < 0 else window_right))"
)
PAIRS = f"({PAIRS})"
"""How many pairs of a query and a key have a part: exact without windows, at most as many with one."""


def axes(batch: int, heads: int, group: int, nq: int, nk: int, d: int, dv: int | None = None) -> dict[str, AxisValue]:
    """Axes by name; `heads` are those of keys and values, dv is d unless it is given."""
    sizes = {"batch": batch, "heads": heads, "group": group, "nq": nq, "nk": nk, "d": d}
    return {**sizes, "dv": d if dv is None else dv}


def _benchmark() -> Iterator[Workload]:
    for dim in (64, 128):
        for batch, length in ((16, 1024), (4, 4096), (1, 16384)):
            for causal in (False, True):
                yield Workload(
                    name=f"{'causal' if causal else 'full'}_{length}_{dim}",
                    axes=axes(batch, 16, 1, length, length, dim),
                    scalars={"causal": True} if causal else {},
                    source="the benchmark of FlashAttention's papers: 16,384 tokens in all, 16 heads",
                )


ATTENTIONS = (
    Workload(
        name="bert_base_512",
        axes=axes(1, 12, 1, 512, 512, 64),
        source="BERT-base: 12 heads of 64, one sequence of 512",
        scale="laptop",
    ),
    Workload(
        name="gpt2_prompt",
        axes=axes(1, 12, 1, 1024, 1024, 64),
        scalars={"causal": True},
        source="GPT-2 small: 12 heads of 64, one context of 1024",
        scale="laptop",
    ),
    *_benchmark(),
    Workload(
        name="llama3_8b_prompt",
        axes=axes(1, 8, 4, 8192, 8192, 128),
        scalars={"causal": True},
        source="Llama 3 8B: 32 query heads on 8 key heads, a prompt of 8192",
    ),
    Workload(
        name="mistral_7b_window",
        axes=axes(1, 8, 4, 16384, 16384, 128),
        scalars={"causal": True, "window_left": 4095},
        source="Mistral 7B v0.1: a sliding window of 4096 over 16384 tokens",
    ),
)
"""Laptop sizes; the shapes that papers and vendors publish figures for; grouped heads; a window."""
