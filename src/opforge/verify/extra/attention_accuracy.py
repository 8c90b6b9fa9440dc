"""How far attention is off its float64 oracle: baseline, window, dropout, and FP8 inputs in several scalings.

baseline, window, dropout   the kernel in the study's dtype against the oracle on the float32 values it was rounded
                            from; the oracle drops the same weights
fp8 FORMAT SCALING          q, k and v stored as torch.float8 with static scales, made from the largest values of a
                            calibration sample (another seed), for the tensor, each channel of a head, or groups of
                            channels; then the kernel in float32. What leaves the format's range is clipped
... stored                  the output in that format too, with a dynamic scale: its own largest value

Smaller groups follow the channels more closely, and their scales come from fewer values, so more of what is new is
clipped: the search takes the smallest group size whose share of clipped elements is at most the target, else the
largest.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from opforge.core.definition.dtypes import DTYPES
from opforge.core.definition.operator import Operator
from opforge.core.evidence.error_bins import HIGHEST, LOWEST, PER_DECADE
from opforge.core.language.errors import UsageError
from opforge.verify.extra.quantisation import clip_ratio, sqnr_db
from opforge.verify.judging.elements import compare
from opforge.verify.oracle.expectation import Expectation

FORMATS = {"e4m3": "float8_e4m3fn", "e5m2": "float8_e5m2"}
BINS = 64
"""Of the histograms of values that entropy is of."""
LEAST_SCALE = 2.0**-126

Row = dict[str, Any]
"""A variant's figures by name."""
Called = Callable[[Sequence[Any], Mapping[str, Any]], Any]
"""The kernel that is studied: q, k, v and the parameters in, its output out."""


@dataclass(frozen=True, kw_only=True)
class Study:
    """What is asked. Sizes in elements; a window of -1 and a dropout of 0 leave those variants out.

    outliers           the share of channels that are `outlier_size` times larger, the same ones for every seed
    group_candidates   channels that may share a scale; those that do not divide `dim` are left out
    """

    version: str
    batch: int = 1
    heads: int = 4
    length: int = 512
    dim: int = 64
    causal: bool = False
    window_left: int = -1
    dropout: float = 0.0
    dtype: str = "bfloat16"
    formats: tuple[str, ...] = tuple(FORMATS)
    outliers: float = 0.0
    outlier_size: float = 20.0
    group_candidates: tuple[int, ...] = (4, 8, 16, 32, 64)
    seed: int = 0

    def __post_init__(self) -> None:
        sizes = {"batch": self.batch, "heads": self.heads, "length": self.length, "dim": self.dim}
        for name, size in sizes.items():
            if size < 1:
                raise UsageError(f"{name} is {size}. Give at least 1.")
        for name, share in (("dropout", self.dropout), ("outliers", self.outliers)):
            if not 0 <= share < 1:
                raise UsageError(f"{name} is {share:g}. Give a share of 0 or more and less than 1.")
        if any(size < 1 for size in self.group_candidates):
            raise UsageError("Groups of channels have at least 1 channel. Give --group-candidates 4,8,16")

    @property
    def key(self) -> str:
        """What makes two runs comparable, in words."""
        shape = "x".join(str(size) for size in (self.batch, self.heads, self.length, self.dim))
        return (
            f"{self.version} {self.dtype} {shape} causal={self.causal} window={self.window_left} "
            f"dropout={self.dropout:g} outliers={self.outliers:g}x{self.outlier_size:g} seed={self.seed}"
        )

    def key_of_groups(self, word: str) -> str:
        """What a chosen group size is for."""
        return f"{word} {self.heads}x{self.length}x{self.dim} outliers {self.outliers:g}"


def drawn(study: Study, seed: int) -> list[Any]:
    """q, k and v in float32, normal; a share of the channels, the same for every seed, is so many times larger."""
    import torch

    make = torch.Generator().manual_seed(seed)
    shape = (study.batch, study.heads, study.length, study.dim)
    chosen = torch.rand(3, study.heads, 1, study.dim, generator=torch.Generator().manual_seed(1)) < study.outliers
    return [torch.randn(shape, generator=make) * (1 + (study.outlier_size - 1) * larger.float()) for larger in chosen]


def scales_of(calibration: Any, group: int | None, largest: float) -> Any:
    """One scale for each group of channels of a head, spread over its channels, [heads, 1, dim]; None: one for all."""
    size = calibration.abs().amax(dim=(0, 2), keepdim=True)[0]
    if group is None:
        return (size.amax() / largest).clamp(min=LEAST_SCALE).expand(size.shape)
    grouped = size.unflatten(-1, (-1, group)).amax(dim=-1, keepdim=True).expand(*size.shape[:-1], -1, group)
    return (grouped.flatten(-2) / largest).clamp(min=LEAST_SCALE)


def stored(values: Any, scale: Any, kind: str) -> Any:
    """The values as FP8 keeps them under a scale, in float32 again; clipped, not overflowing."""
    import torch

    largest = DTYPES[kind].largest
    return (values / scale).clamp(-largest, largest).to(getattr(torch, kind)).float() * scale


def entropy(values: Any) -> float:
    """Of the histogram of the values between their ends, in nats."""
    counts = values.double().flatten().histc(BINS, float(values.min()), float(values.max()))
    shares = counts[counts > 0] / counts.sum()
    return float(-(shares * shares.log()).sum())


def divergence(actual: Any, expected: Any) -> float:
    """Kullback-Leibler, of the histogram of the result against the oracle's over the range of both, in nats; each bin
    counts one half more, so that none is empty.
    """
    low, high = (float(end(actual.double(), expected).item()) for end in (_least, _most))
    if not low < high:
        return 0.0
    one, other = (values.double().flatten().histc(BINS, low, high) + 0.5 for values in (actual, expected))
    one, other = one / one.sum(), other / other.sum()
    return float((one * (one / other).log()).sum())


def _least(one: Any, other: Any) -> Any:
    return one.amin().minimum(other.amin())


def _most(one: Any, other: Any) -> Any:
    return one.amax().maximum(other.amax())


def error_histogram(error: Any) -> list[int]:
    """Counts of |error| in bins of equal width in its logarithm; the first has all below, the last all above."""
    places = ((error.abs().clamp(min=1e-300).log10() - LOWEST) * PER_DECADE).floor().long()
    return [int(count) for count in places.clamp(0, (HIGHEST - LOWEST) * PER_DECADE - 1).flatten().bincount(
        minlength=(HIGHEST - LOWEST) * PER_DECADE)]  # fmt: skip


def figures(actual: Any, expected: Any) -> Row:
    """Everything that is said of a result against the oracle's."""
    import torch

    anything = torch.full_like(expected, float("inf"))
    found = compare(actual, Expectation(output="out", dtype="float32", expected=expected, bound=anything)).metrics
    error = actual.double() - expected
    p50, p90, p99 = found.quantiles_abs
    return {
        "max_abs": found.max_abs,
        "mean_abs": found.mean_abs,
        "max_rel": found.max_rel,
        "mean_rel": found.mean_rel,
        "p50_abs": p50,
        "p90_abs": p90,
        "p99_abs": p99,
        "kl": divergence(actual, expected),
        "entropy": entropy(actual),
        "entropy_of_oracle": entropy(expected),
        "sqnr_db": sqnr_db(expected, actual),
        "histogram": error_histogram(error),
    }


def clipped(values: Sequence[Any], scales: Sequence[Any], kind: str) -> float:
    """The share of all elements that leave the range of the format."""
    return sum(clip_ratio(one, kind, scale) for one, scale in zip(values, scales, strict=True)) / len(values)


def studied(study: Study, operator: Operator, call: Called, clip_target: float, known: dict[str, int]) -> list[Row]:
    """Every variant with its figures; `operator` is attention.

    clip_target   the share of elements that a group size may clip
    known         group sizes by `Study.key_of_groups`: taken where there, and what was found is kept in it
    """
    import torch

    tensors, calibration = drawn(study, study.seed), drawn(study, study.seed + 1)

    def oracle(scalars: Mapping[str, Any]) -> Any:
        values = operator.scalar_values(scalars)
        return operator.reference(*(tensor.double() for tensor in tensors), *[None] * 5, **values)[0]

    shared = {"causal": study.causal}
    rows = []
    variants: dict[str, dict[str, Any]] = {"baseline": shared}
    if study.window_left >= 0:
        variants["window"] = {**shared, "window_left": study.window_left, "causal": True}
    if study.dropout > 0:
        variants["dropout"] = {**shared, "dropout": study.dropout, "seed": study.seed}
    dtype = getattr(torch, study.dtype)
    for name, scalars in variants.items():
        made = call([tensor.to(dtype) for tensor in tensors], scalars)
        rows.append({"variant": name, **figures(made.float(), oracle(scalars))})
    expected = oracle(shared)
    for word in study.formats:
        kind = FORMATS[word]
        largest = DTYPES[kind].largest
        candidates = [size for size in sorted(study.group_candidates) if study.dim % size == 0]
        searched = {
            size: clipped(tensors, [scales_of(one, size, largest) for one in calibration], kind) for size in candidates
        }
        key = study.key_of_groups(word)
        fitting = [size for size in candidates if searched[size] <= clip_target]
        group = known.get(key) or (fitting[0] if fitting else candidates[-1] if candidates else study.dim)
        known[key] = group
        for scaling, size in (("tensor", None), ("channel", 1), (f"group {group}", group)):
            scales = [scales_of(one, size, largest) for one in calibration]
            given = [stored(one, scale, kind) for one, scale in zip(tensors, scales, strict=True)]
            made = call(given, shared)
            every = torch.cat([scale.flatten() for scale in scales])
            amax = torch.cat([one.abs().amax(dim=(0, 2)).flatten() for one in tensors])
            facts = {
                "clip_ratio": clipped(tensors, scales, kind),
                "amax_mean": float(amax.mean()),
                "amax_max": float(amax.max()),
                "scale_mean": float(every.mean()),
                "scale_max": float(every.max()),
                "candidates": searched if scaling.startswith("group") else {},
            }
            rows.append({"variant": f"fp8 {word} {scaling}", **facts, **figures(made, expected)})
            dynamic = made.abs().amax().clamp(min=LEAST_SCALE) / largest
            rows.append({"variant": f"fp8 {word} {scaling} stored", **figures(stored(made, dynamic, kind), expected)})
    return rows
