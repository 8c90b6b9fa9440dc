"""Results of searches in other tuners' formats, in and out.

| format | what it is |
|---|---|
| t4 | the auto-tuning community's result schema T4, 1.0.0 (github.com/odgaard/TuningSchema) |
| kernel-tuner | Kernel Tuner's cache file: one kernel on one device, points by their values |
| mnk | `{"MxNxK:dtype": {config}}`, the winners of matrix products |
| triton | in only: the `triton.Config(…)` of an `@triton.autotune` in a Python file, which is read and not run |

What comes in has no Pass here, so it is never evidence: it is a trace that a search begins with.
"""

from __future__ import annotations

import ast
import gzip
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from opforge.core.definition.implementation import Config
from opforge.core.definition.shapes import Axes
from opforge.core.evidence.record import Record
from opforge.core.evidence.verdict import Mismatch, Pass, Timeout, Unsupported
from opforge.core.language.errors import UsageError
from opforge.tuning.earlier import stage_of
from opforge.tuning.strategies import Failure, Measured, Outcome, Trace

OUT = ("t4", "kernel-tuner", "mnk")
"""What `opforge records export --format` takes, besides jsonl."""

INVALIDITY = {"compile": "compile", "launch": "runtime", "wrong": "correctness", "slow": "timeout"}
STAGES = {name: stage for stage, name in INVALIDITY.items()} | {"constraints": "compile"}
ERRORS = {"compile": "CompilationFailedConfig", "launch": "RuntimeFailedConfig", "wrong": "InvalidConfig"}
"""Kernel Tuner's words for a point without a time; a timeout is a failure at run time there."""


def written(form: str, records: Sequence[Record]) -> dict[str, Any]:
    """The records as plain data in one of OUT. Raises UsageError where they have no form in it."""
    return {"t4": t4_of, "kernel-tuner": cache_of, "mnk": mnk_of}[form](records)


def t4_of(records: Iterable[Record]) -> dict[str, Any]:
    """T4: one result for each record of a config. Times in ms, each sample among the runtimes."""
    results = []
    for record in records:
        stage = _stage(record)
        if stage is None and record.timing is None:
            continue  # not measured: same code as another, or slower than was worth a time
        samples_ms = [1e3 * sample for sample in record.timing.samples_s] if record.timing else []
        result: dict[str, Any] = {
            "timestamp": record.created_at,
            "configuration": record.config.as_dict(),
            "objectives": ["time"],
            "times": {"runtimes": samples_ms},
            "invalidity": INVALIDITY[stage] if stage else "correct",
            "correctness": 0.0 if stage == "wrong" else 1.0,
            "measurements": [],
            "opforge": {
                "operator": record.operator,
                "implementation": record.implementation,
                "dtype": record.dtype,
                "axes": _plain(record.axes),
                "device": record.device,
                "record": record.id,
            },
        }
        if record.timing is not None:
            result["measurements"] = [{"name": "time", "value": 1e3 * record.timing.median_s, "unit": "ms"}]
        results.append(result)
    return {"schema_version": "1.0.0", "results": results}


def cache_of(records: Sequence[Record]) -> dict[str, Any]:
    """Kernel Tuner's cache, which its simulation mode reads: of one implementation, workload, dtype and device. Raises
    UsageError for records of several.
    """
    usable = [record for record in records if record.timing is not None or _stage(record)]
    kinds = {(item.operator, item.implementation, item.dtype, item.device, str(_plain(item.axes))) for item in usable}
    if len(kinds) != 1:
        raise UsageError(
            f"A Kernel Tuner cache holds one search, and these are {len(kinds)}. Say which with --operator and --run; "
            "see the runs with: opforge records"
        )
    first = usable[0]
    names = [name for name, _ in first.config.values]
    points: dict[str, Any] = {}
    for record in usable:
        values, stage = record.config.as_dict(), _stage(record)
        result: dict[str, Any] = dict(values)
        result["time"] = ERRORS.get(stage, "RuntimeFailedConfig") if stage else 1e3 * _median_s(record)
        if record.timing is not None:
            result["times"] = [1e3 * sample for sample in record.timing.samples_s]
        parts = ("compile_time", "verification_time", "benchmark_time", "strategy_time", "framework_time")
        result |= dict.fromkeys(parts, 0.0) | {"timestamp": record.created_at}
        points[",".join(str(values[name]) for name in names)] = result
    return {
        "device_name": first.device,
        "kernel_name": first.implementation,
        "problem_size": [value for value in first.axes.values() if isinstance(value, int)],
        "tune_params_keys": names,
        "tune_params": {name: sorted({item.config.as_dict()[name] for item in usable}, key=_order) for name in names},
        "objective": "time",
        "cache": points,
    }


def mnk_of(records: Iterable[Record]) -> dict[str, Any]:
    """`MxNxK:dtype` → config and milliseconds of the fastest record of that shape. Raises UsageError where no record
    has the axes m, n and k.
    """
    best: dict[str, Record] = {}
    for record in records:
        key = mnk_key(record.axes, record.dtype)
        if key and record.timing and (key not in best or _median_s(record) < _median_s(best[key])):
            best[key] = record
    if not best:
        raise UsageError("No record here has a time and the axes m, n and k. This form is for matrix products.")
    return {key: {**item.config.as_dict(), "ms": 1e3 * _median_s(item)} for key, item in sorted(best.items())}


def mnk_key(axes: Axes, dtype: str) -> str:
    """`MxNxK:dtype`; "" for axes that are not m, n and k."""
    sizes = {name.lower(): value for name, value in axes.items()}
    if not {"m", "n", "k"} <= set(sizes):
        return ""
    return "x".join(str(sizes[name]) for name in "mnk") + f":{dtype}"


def traces_in(file: Path, *, axes: Axes, dtype: str) -> list[Trace]:
    """What a file of any of these formats says for a search of these axes and dtype; [] where it holds other shapes
    alone. Raises UsageError where it is none of them.
    """
    try:
        text = (gzip.decompress if file.suffix == ".gz" else bytes)(file.read_bytes()).decode("utf-8")
    except (gzip.BadGzipFile, EOFError, UnicodeDecodeError) as error:
        raise _unreadable(file, f"{type(error).__name__}: {error}") from error
    if file.suffix == ".py":
        return [Trace(origin=str(file), outcomes=((config, Measured(seconds=1.0)),)) for config in triton_configs(text)]
    try:
        said = json.loads(text)
        if "results" in said:
            return _grouped(str(file), [(_config(item["configuration"]), t4_outcome(item)) for item in said["results"]])
        if "cache" in said:
            names = said["tune_params_keys"]
            points = [({name: item[name] for name in names}, item["time"]) for item in said["cache"].values()]
            return _grouped(str(file), [(_config(values), _cache_outcome(ms)) for values, ms in points])
        if said and all(":" in key and isinstance(value, dict) for key, value in said.items()):
            chosen = said.get(mnk_key(axes, dtype))
            if chosen is None:
                return []
            config = _config({name: value for name, value in chosen.items() if name not in ("ms", "time", "time_ms")})
            return [Trace(origin=str(file), outcomes=((config, Measured(seconds=1.0)),))]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise _unreadable(file, f"{type(error).__name__}: {error}") from error
    raise _unreadable(file, "it has neither results, cache nor MxNxK:dtype")


def triton_configs(source: str) -> list[Config]:
    """The literal `triton.Config({…}, num_warps=…, num_stages=…)` in a Python source, in their order. What is computed
    cannot be known without running it, and is left out.
    """
    configs = []
    for node in ast.walk(ast.parse(source)):
        name = getattr(node, "func", None)
        if (
            not isinstance(node, ast.Call)
            or getattr(name, "attr", getattr(name, "id", "")) != "Config"
            or not node.args
        ):
            continue
        try:
            values = dict(ast.literal_eval(node.args[0]))
            values |= {item.arg: ast.literal_eval(item.value) for item in node.keywords if item.arg}
        except (ValueError, TypeError):
            continue
        configs.append(_config({name: value for name, value in values.items() if isinstance(value, (int, str, bool))}))
    return configs


def _stage(record: Record) -> str | None:
    """Where a point failed; None for one that passed, or was not looked at."""
    if isinstance(record.verdict, Pass | Unsupported):
        return None
    return (
        "wrong"
        if isinstance(record.verdict, Mismatch)
        else "slow"
        if isinstance(record.verdict, Timeout)
        else (stage_of(record.verdict))
    )


def _median_s(record: Record) -> float:
    assert record.timing is not None
    return record.timing.median_s


def _plain(axes: Axes) -> dict[str, Any]:
    return {name: list(value) if isinstance(value, tuple) else value for name, value in axes.items()}


def _order(value: object) -> tuple[bool, Any]:
    return isinstance(value, str), value


def _config(values: Mapping[str, Any]) -> Config:
    return Config(tuple((str(name), value) for name, value in values.items()))


def _grouped(origin: str, outcomes: list[tuple[Config, Outcome]]) -> list[Trace]:
    return [Trace(origin=origin, outcomes=tuple(outcomes))] if outcomes else []


def t4_outcome(result: Mapping[str, Any]) -> Outcome:
    """What one result of T4 says of its point. Raises KeyError where it says nothing."""
    if result["invalidity"] != "correct":
        return Failure(stage=STAGES.get(result["invalidity"], "launch"))
    named = {item["name"]: item["value"] for item in result.get("measurements", ())}
    value = named.get("time", named.get("TotalTime"))
    if value is None:
        runtimes = sorted(result["times"]["runtimes"])
        value = runtimes[len(runtimes) // 2]
    return Measured(seconds=float(value) / 1e3)


def _cache_outcome(time_ms: object) -> Outcome:
    if isinstance(time_ms, (int, float)) and time_ms < 1e20:
        return Measured(seconds=time_ms / 1e3)
    word = str(time_ms)
    return Failure(stage="compile" if "Compilation" in word else "wrong" if "Invalid" in word else "launch")


def _unreadable(file: Path, reason: str) -> UsageError:
    return UsageError(
        f"{file} holds no results of a search ({reason}). Known: T4, a Kernel Tuner cache, MxNxK:dtype choices, or a "
        "Python file with triton.Config(…)."
    )
