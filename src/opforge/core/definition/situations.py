"""The words of a case: how its values are distributed, and how its tensors lie in memory."""

from __future__ import annotations

DISTRIBUTIONS = (
    "normal",
    "uniform",
    "large",
    "tiny",
    "offset",
    "skewed",
    "sparse",
    "constant_rows",
    "integers",
    "zeros",
    "ones",
    "exponents",
    "float16_range",
    "scaled",
    "scaled_half",
    "scaled_quarter",
    "twins",
    "special",
    "scattered",
    "masked",
)
"""How values are drawn (runner.worker.inputs makes them)."""

LAYOUTS = (
    "contiguous",
    "misaligned",
    "transposed",
    "channels_last",
    "sliced",
    "expanded",
    "strided",
    "offset_16",
    "offset_32",
    "fenced",
    "ordinary",
)
"""How tensors lie in memory (runner.worker.arena lays them out)."""
