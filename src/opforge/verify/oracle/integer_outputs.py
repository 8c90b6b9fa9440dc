"""Whole numbers, True and False: right or wrong, with no bound between. An index among equals is right by the rule that
the definition states.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from opforge.core.definition.dtypes import DTYPES
from opforge.core.definition.operator import ScalarValue, Ties


def scores_of(ties: Ties, inputs: Mapping[str, Any], scalars: Mapping[str, ScalarValue]) -> Any:
    """What the indices choose from, along its last axis, in float64."""
    import torch

    return (inputs[ties.scores] if isinstance(ties.scores, str) else ties.scores(inputs, scalars)).to(torch.float64)


def settled(indices: Any, ties: Ties, scores: Any) -> Any:
    """The reference's indices ([*rows, k], or [*rows] for one of each row; int64) with the rule applied: of equal
    scores the first, or the last, in the order of their
    indices, whichever of them the reference's own selection took. "any" leaves them as they are."""
    import torch

    if ties.rule == "any" or not indices.numel():
        return indices
    chosen = indices if indices.ndim == scores.ndim else indices.unsqueeze(-1)
    ordered = scores if ties.rule == "first" else scores.flip(-1)
    last = scores.shape[-1] - 1
    values = torch.gather(scores, -1, chosen)
    places = []
    for place in range(chosen.shape[-1]):
        value = values[..., place : place + 1]
        equal = _same(ordered, value)
        # how many of the same score stand before it in its row of the answer: the first of them gets the first of the
        # equals, and so on
        rank = _same(values[..., :place], value).sum(-1, keepdim=True) + 1
        places.append((equal & (equal.cumsum(-1) == rank)).to(torch.uint8).argmax(-1, keepdim=True))
    settled_index = torch.cat(places, -1)
    settled_index = settled_index if ties.rule == "first" else last - settled_index
    return settled_index.reshape(indices.shape)


def right_whole(actual: Any, expectation: Any) -> Any:
    """Which elements of an output of whole numbers are right, by its Expectation: a bool tensor of its shape."""
    import torch

    got, exact, ties = actual.detach().to(torch.int64), expectation.exact, expectation.ties
    right = got == exact
    if ties is None or ties.rule != "any" or not got.numel():
        return right
    scores = expectation.scores
    rows = got if got.ndim == scores.ndim else got.unsqueeze(-1)
    inside = (rows >= 0) & (rows < scores.shape[-1])
    taken = torch.gather(scores, -1, rows.clamp(0, scores.shape[-1] - 1))
    wanted = torch.gather(scores, -1, exact.reshape(rows.shape))
    near = (taken - wanted).abs() <= ties.near * DTYPES["float32"].epsilon * wanted.abs()
    once = (rows.unsqueeze(-1) == rows.unsqueeze(-2)).sum(-1) == 1
    return (inside & once & (near | _same(taken, wanted))).reshape(got.shape)


def _same(a: Any, b: Any) -> Any:
    return (a == b) | (a.isnan() & b.isnan())
