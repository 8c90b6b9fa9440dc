"""What the figures of an accuracy study ask for, in words; thresholds that a person may edit."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path

from opforge.core.language.errors import UsageError
from opforge.verify.extra.attention_accuracy import Row

THRESHOLDS = Path(__file__).with_name("accuracy.toml")
"""Those that ship, each with its meaning."""


def thresholds_from(path: Path | None, changed: Sequence[str] = ()) -> dict[str, float]:
    """The thresholds of a TOML file over those that ship, then `changed`, each "name=value". Raises UsageError."""
    known = tomllib.loads(THRESHOLDS.read_text(encoding="utf-8"))
    found = dict(known)
    if path is not None:
        try:
            found |= tomllib.loads(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise UsageError(f"Cannot read {path}: {error.strerror}. Write one: opforge accuracy "
                             "--write-thresholds FILE") from error  # fmt: skip
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise UsageError(f"{path}: {error}. One line each: name = number") from error
    for word in changed:
        name, _, value = word.partition("=")
        try:
            found[name] = float(value)
        except ValueError:
            raise UsageError(f"{word!r} sets no threshold. Write --set name=number") from None
    for name, value in found.items():
        if name not in known:
            raise UsageError(f"No threshold is called {name!r}. Known: {', '.join(known)}.")
        if isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0:
            raise UsageError(f"{name} is {value!r}. Give a number of 0 or more.")
    return {name: float(value) for name, value in found.items()}


def _finer(rows: Sequence[Row], whole: Row) -> str:
    """Whether a scale for each channel or group does better than this one for the tensor, by the figures."""
    stem = whole["variant"].removesuffix("tensor")
    finer = [row for row in rows if row["variant"].startswith(stem) and "clip_ratio" in row and row is not whole]
    better = [row for row in finer if row["mean_abs"] < whole["mean_abs"]]
    if not finer or better:
        best = min(better, key=lambda row: float(row["mean_abs"]), default=None)
        return (
            "scale channels or groups"
            if best is None
            else f"{best['variant']} has {best['mean_abs']:.3g} of mean error"
        )
    return "and yet finer scales do worse, by what they clip of new values: leave it, or calibrate on more of them"


def advice(rows: Sequence[Row], last: Mapping[str, Row], thresholds: Mapping[str, float]) -> list[str]:
    """What the figures ask for, in words."""
    found = []
    tail = next(row["p99_abs"] / row["mean_abs"] for row in rows if row["variant"] == "baseline" and row["mean_abs"])
    for row in rows:
        name = row["variant"]
        clip, target = row.get("clip_ratio", 0.0), thresholds["clip_target"]
        if clip > target:
            found.append(
                f"{name}: {clip:.2%} is clipped (target {target:.2%}): take scales from more calibration values, "
                "larger groups, or a margin on the largest value"
            )
        own = row["p99_abs"] / row["mean_abs"] if row["mean_abs"] else 0.0
        if own > thresholds["tail_over_baseline"] * tail:
            found.append(
                f"{name}: p99 is {own:.1f} times the mean, the baseline's {tail:.1f} times: a long tail, look at "
                "single channels"
            )
        skew = row["amax_max"] / row["amax_mean"] if row.get("amax_mean") else 0.0
        if name.endswith(" tensor") and skew > thresholds["scale_max_over_mean"]:
            found.append(f"{name}: the largest channel is {skew:.1f} times the mean one: {_finer(rows, row)}")
        if row["sqnr_db"] < thresholds["least_sqnr_db"]:
            found.append(f"{name}: {row['sqnr_db']:.1f} dB of signal over error: keep this operand in 16 bits")
        before = last.get(name)
        if before and row["p99_abs"] > thresholds["p99_over_last"] * before["p99_abs"]:
            found.append(
                f"{name}: p99 is {row['p99_abs'] / before['p99_abs']:.2f} times that of the last run: a regression"
            )
    inputs = [row for row in rows if row["variant"].startswith("fp8") and not row["variant"].endswith("stored")]
    if inputs:
        best = min(inputs, key=lambda row: float(row["mean_abs"]))
        found.append(f"least mean error of the FP8 variants: {best['variant']} ({best['mean_abs']:.3g})")
    return found
