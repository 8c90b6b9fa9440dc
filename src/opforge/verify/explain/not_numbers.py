"""What made a NaN or an infinity where the result is finite: the questions that look at payloads, and at the inputs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from opforge.verify.explain.payloads import Traces

UNSHARED = "it is read before it is written"
EXP_OVERFLOWS = 88.7
"""From here on exp is infinite in float32."""


def by_traces(wrong: Any, traces: Traces, tail: str | None) -> str | None:
    """What payloads alone say, where they say it of every wrong element."""
    bad = int(wrong.sum())
    if bool(traces.unwritten[wrong].all()):
        words = "never written: every wrong element holds what stood there before the run"
        return f"{words}, and {tail}: a mask that hides too much, or a grid that is too small" if tail else words
    missing = int((traces.unshared & wrong).sum())
    if missing and 2 * missing >= bad:
        return (
            f"{missing} of {bad} wrong elements hold what the emulator fills shared memory with: {UNSHARED}. A "
            "__syncthreads() is missing between the two, or a part that nobody writes"
        )
    outside = int((traces.outside & wrong).sum())
    if outside:
        return (
            f"{outside} of {bad} wrong elements hold the NaN that stands outside of {traces.read_past}: read past its "
            "end, or before its start. A mask on the load, or a bound on the loop"
        )
    return None


def computed(actual: Any, expected: Any, wrong: Any, inputs: Mapping[str, Any]) -> str | None:
    """Which operation may have made what is not finite, where all that is wrong is so and payloads say it was
    computed.
    """
    import torch

    made = wrong & ~torch.isfinite(actual) & torch.isfinite(expected)
    if not bool(made.any()) or not bool(made[wrong].all()):
        return None
    nans, infinite = int((wrong & actual.isnan()).sum()), int((wrong & actual.isinf()).sum())
    what = f"computed as NaN in {nans} elements" if not infinite else f"infinite in {infinite} elements, NaN in {nans}"
    if not nans:
        return None
    for name, tensor in inputs.items():
        if not tensor.is_floating_point() or not tensor.numel():
            continue
        if tensor.shape == wrong.shape and _marks(tensor == 0, wrong):
            return f"{what}, wherever {name} is 0: 0 / 0, or 0 * inf"
        rows = wrong.any(-1) if wrong.ndim else wrong
        if not wrong.ndim or tensor.ndim < 1 or tensor.shape[:-1] not in (rows.shape, wrong.shape):
            continue
        bad = rows if tensor.shape[:-1] == rows.shape else wrong
        if _marks((tensor == -torch.inf).all(-1), bad):
            return f"{what}, in the rows where {name} is -inf throughout: -inf - (-inf), or 0 / 0 of a sum of nothing"
        if _marks((tensor == 0).all(-1), bad):
            return f"{what}, in the rows where {name} is 0 throughout: 0 / 0"
        if _marks(tensor.isinf().any(-1), bad):
            return f"{what}, in the rows where {name} holds an infinity: inf - inf, 0 * inf or inf / inf"
        top = tensor.nan_to_num(nan=0.0, posinf=0.0, neginf=0.0).abs().amax(-1)
        finite = torch.isfinite(tensor).all(-1)
        if bool((bad & finite).any()) and bool((top[bad] > EXP_OVERFLOWS).all()):
            return (
                f"{what}, in rows of {name} with values beyond {EXP_OVERFLOWS}: inf / inf or inf - inf after an "
                "overflow, such as exp without the shift by the maximum, or a square"
            )
    also = "an intermediate overflows, and then " if infinite else ""
    return f"{what}: {also}0 / 0, inf - inf or 0 * inf"


def _marks(held: Any, wrong: Any) -> bool:
    """Whether what holds tells the wrong ones from the right ones."""
    return bool(wrong.any()) and bool(held[wrong].all()) and not bool((held & ~wrong).any())
