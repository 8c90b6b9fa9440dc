"""The checklist before a patched model is deployed: every item with its number, its outcome and its evidence.

The items are those of a deployment checklist for operators (performance, numerics, stability, monitoring, FP8). What
was not shown has not passed: an unsure comparison and too few calls fail, with what would show it.
"""

from __future__ import annotations

import copy
import gc
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import torch
from torch import Tensor

from opforge.core.evidence.comparison import FASTER, SAME
from opforge.core.language import units
from opforge.core.language.errors import OpforgeError, first_line
from opforge.model.agreement import Inputs, agreement, before, forward, inputs_of, tensors_of, training_step
from opforge.model.compare import FORWARD, Compared, compare_model, twin
from opforge.model.patch import patch

CALLS = 10_000
"""So many calls show that nothing leaks and nothing decays."""
ERROR = 1e-5
"""The largest error against the reference, as a share of the largest result, where float32 computes."""
BUSY, BUSY_CALLS = 0.8, 20
DECAY = 1.05
"""The last tenth of the calls may take so many times what the first does: a busy machine moves medians by that much."""
LEAK_BYTES, LEAK_PER_CALL = 4 << 20, 256
"""A process that grew by both lost memory: allocators keep a few MiB, and no call needs a byte that stays."""
THREADS, THREAD_CALLS = 4, 25


class Outcome(StrEnum):
    """What an item came to."""

    PASS = "pass"
    FAIL = "fail"
    NOT_APPLICABLE = "not applicable"


@dataclass(frozen=True, kw_only=True)
class Item:
    """One line of the checklist, with its number in it."""

    number: str
    about: str
    outcome: Outcome
    evidence: str


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What is asked of the model in numbers; None where nothing is.

    latency_s     the 99th percentile of a call
    memory_bytes  the most that a call may hold
    calls         calls of the long run
    """

    latency_s: float | None = None
    memory_bytes: int | None = None
    calls: int = CALLS


def _passed(good: bool) -> Outcome:
    return Outcome.PASS if good else Outcome.FAIL


def checklist(
    model: torch.nn.Module,
    example: Any,
    limits: Limits = Limits(),
    *,
    budget_s: float = 5.0,
    clock: Callable[[], float] = time.perf_counter,
    tell: Callable[[str], None] = lambda words: None,
    **options: Any,
) -> tuple[Item, ...]:
    """All items, for a model as opforge.patch patches it. The model itself stays unpatched; `options` are patch's."""
    inputs = inputs_of(example)
    tell("compares the patched model with the unpatched one")
    compared = compare_model(
        model, inputs, variants=("eager", "opforge"), budget_s=budget_s, clock=clock, training=False, **options
    )
    patched = patch(twin(model), example=inputs, **options)
    items = [*_performance(compared, limits), _busy(patched, inputs, clock)]
    tell("holds results against the reference")
    items += _numerics(compared, model, patched, inputs)
    tell(f"calls it {limits.calls} times")
    items += _stability(model, patched, inputs, limits, clock)
    items += _monitoring(compared, model, patched, inputs)
    items += _fp8(model)
    return tuple(items)


def _performance(compared: Compared, limits: Limits) -> list[Item]:
    eager, mine = (next(one for one in compared.measured if one.name == name) for name in ("eager", "opforge"))
    against = mine.against
    assert against is not None  # it is not the baseline
    words = f"{against.outcome}: {against.ratio:.3f} times the unpatched model's time in {against.pairs} pairs"
    worst = quantiles(mine.samples_s, n=100)[98]
    peak, theirs = mine.peak_bytes, eager.peak_bytes
    allowed = limits.memory_bytes if limits.memory_bytes is not None else theirs
    return [
        Item(
            number="7.2.1.1.1",
            about="as fast as the baseline",
            outcome=_passed(against.outcome in (FASTER, SAME)),
            evidence=words + ("" if against.outcome in (FASTER, SAME) else "; a longer --budget tells more"),
        ),
        Item(
            number="7.2.1.1.2",
            about="latency within the agreement",
            outcome=Outcome.NOT_APPLICABLE if limits.latency_s is None else _passed(worst <= limits.latency_s),
            evidence=f"99th percentile {units.seconds(worst)}"
            + (f" of {units.seconds(limits.latency_s)}" if limits.latency_s is not None else "; none was given: --sla"),
        ),
        Item(
            number="7.2.1.1.3",
            about="memory within reason",
            outcome=Outcome.NOT_APPLICABLE if peak is None or allowed is None else _passed(peak <= allowed * 1.01),
            evidence="this device cannot be asked"
            if peak is None or allowed is None
            else f"a call holds {units.size(peak)}, allowed are {units.size(allowed)}"
            + (" (the unpatched model's)" if limits.memory_bytes is None else ""),
        ),
    ]


def _busy(patched: torch.nn.Module, inputs: Inputs, clock: Callable[[], float]) -> Item:
    device = next((one.device.type for one in patched.parameters()), "cpu")
    number, about = "7.2.1.1.4", "the device is busy for more than 80 % of the time"
    if device != "cuda":
        words = f"on a {device} the host is the device" if device == "cpu" else f"no profiler tells it of a {device}"
        return Item(number=number, about=about, outcome=Outcome.NOT_APPLICABLE, evidence=words)
    activities = [torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profile:
        torch.cuda.synchronize()
        begun = clock()
        for _ in range(BUSY_CALLS):
            _plain(patched, inputs)
        torch.cuda.synchronize()
        elapsed = clock() - begun
    busy = sum(event.self_device_time_total for event in profile.key_averages()) * 1e-6 / elapsed
    words = f"kernels run for {units.percent(busy)} of {BUSY_CALLS} calls"
    more = "" if busy > BUSY else "; the host is late: a CUDA graph or a larger batch helps"
    return Item(number=number, about=about, outcome=_passed(busy > BUSY), evidence=words + more)


def _numerics(compared: Compared, model: torch.nn.Module, patched: torch.nn.Module, inputs: Inputs) -> list[Item]:
    error = next(one.error for one in compared.measured if (one.name, one.phase) == ("opforge", FORWARD))
    dtypes = {one.dtype for one in model.parameters() if one.is_floating_point()}
    wide = dtypes <= {torch.float32, torch.float64}
    try:
        words, agrees = agreement(before(model, inputs), forward(patched, inputs), training_step(patched, inputs)), True
    except OpforgeError as refused:
        words, agrees = str(refused), False
    step = training_step(patched, inputs)
    odd = [
        name
        for group in (step.outputs, step.gradients)
        for name, tensor in group.items()
        if not torch.isfinite(tensor).all()
    ]
    fp8 = any("float8" in str(dtype) for dtype in dtypes)
    return [
        Item(
            number="7.2.1.2.1",
            about="error below 1e-5 of the reference, or the bound of the dtype",
            outcome=_passed(agrees and (error < ERROR or not wide)),
            evidence=f"{error:.1e} of the largest result against float64; {words}",
        ),
        Item(
            number="7.2.1.2.2",
            about="FP8 error below 1 %",
            outcome=_passed(error < 0.01) if fp8 else Outcome.NOT_APPLICABLE,
            evidence=f"{error:.2%}" if fp8 else "no weight is FP8",
        ),
        _edges(model, patched, inputs),
        Item(
            number="7.2.1.2.4",
            about="no NaN and no infinity",
            outcome=_passed(not odd),
            evidence=f"in {', '.join(odd[:4])}" if odd else f"none in outputs and {len(step.gradients)} gradients",
        ),
    ]


def _edges(model: torch.nn.Module, patched: torch.nn.Module, inputs: Inputs) -> Item:
    """Batches and sequences of one."""
    done, wrong = [], []
    for name, cut in (("a batch of one", _cut(inputs, 0)), ("a sequence of one", _cut(inputs, 1))):
        try:
            theirs = before(model, cut)
        except (RuntimeError, ValueError, IndexError, TypeError):
            continue  # the model itself does not take it
        try:
            agreement(theirs, forward(patched, cut), training_step(patched, cut))
            done.append(name)
        except (OpforgeError, RuntimeError, ValueError, IndexError, TypeError) as error:
            wrong.append(f"{name}: {error}")
    outcome = _passed(not wrong) if done or wrong else Outcome.NOT_APPLICABLE
    evidence = "; ".join(wrong) or ", ".join(done) or "the model takes no smaller inputs"
    return Item(number="7.2.1.2.3", about="edges are right", outcome=outcome, evidence=evidence)


def _cut(inputs: Inputs, axis: int) -> Inputs:
    def cut(value: Any) -> Any:
        takes = isinstance(value, Tensor) and value.ndim > axis and (axis == 0 or not value.is_floating_point())
        return value.narrow(axis, 0, 1) if takes else value

    return Inputs(given=tuple(map(cut, inputs.given)), named={name: cut(value) for name, value in inputs.named.items()})


def _stability(
    model: torch.nn.Module, patched: torch.nn.Module, inputs: Inputs, limits: Limits, clock: Callable[[], float]
) -> list[Item]:
    first, last, grown = long_run(lambda: _plain(patched, inputs), limits.calls, clock)
    enough = limits.calls >= CALLS
    few = "" if enough else f"; {limits.calls} calls show little: --calls {CALLS}"
    leaks = grown > LEAK_BYTES and grown > LEAK_PER_CALL * limits.calls
    return [
        Item(
            number="7.2.1.3.1",
            about=f"no decay over {CALLS} calls",
            outcome=_passed(enough and last <= first * DECAY),
            evidence=f"the last tenth takes {last / first:.3f} times what the first does{few}",
        ),
        Item(
            number="7.2.1.3.2",
            about=f"no leak over {CALLS} calls",
            outcome=_passed(enough and not leaks),
            evidence=f"the process grew by {units.size(max(0, grown))} in {limits.calls} calls{few}",
        ),
        _odd_inputs(model, patched, inputs),
        _threads(patched, inputs),
    ]


def _plain(model: torch.nn.Module, inputs: Inputs) -> None:
    with torch.no_grad():
        model(*inputs.given, **inputs.named)


def long_run(call: Callable[[], None], calls: int, clock: Callable[[], float]) -> tuple[float, float, int]:
    """Median seconds of the first and the last tenth of many calls, and by how many bytes the process grew between."""
    tenth = max(1, calls // 10)
    for _ in range(min(50, tenth)):
        call()
    gc.collect()
    taken: list[float] = []
    lay = 0
    for at in range(calls):
        if at == tenth:
            lay = resident_bytes()
        begun = clock()
        call()
        taken.append(clock() - begun)
    gc.collect()
    return median(taken[:tenth]), median(taken[-tenth:]), resident_bytes() - lay


def resident_bytes() -> int:
    """Memory of this process, and of its tensors on an accelerator."""
    status = Path("/proc/self/statm")
    pages = int(status.read_text(encoding="ascii").split()[1]) if status.exists() else 0
    on_device = torch.cuda.memory_allocated() if torch.cuda.is_available() else 0
    return pages * 4096 + int(on_device)


def _odd_inputs(model: torch.nn.Module, patched: torch.nn.Module, inputs: Inputs) -> Item:
    """What the unpatched model refuses the patched one refuses too, by the same kind of error; then both go on."""
    expected, wrong, asked = forward(patched, inputs), [], 0
    for name, odd in _odd(inputs):
        theirs, mine = _refusal(model, odd), _refusal(patched, odd)
        asked += 1
        if theirs != mine:
            wrong.append(f"{name}: unpatched {theirs or 'takes it'}, patched {mine or 'takes it'}")
    after = forward(patched, inputs)
    if any(not torch.equal(expected[name], after[name]) for name in expected):
        wrong.append("afterwards its results are others")
    return Item(
        number="7.2.1.3.3",
        about="odd inputs are handled",
        outcome=_passed(not wrong),
        evidence="; ".join(wrong) or f"{asked} odd calls end as the unpatched model's do",
    )


def _odd(inputs: Inputs) -> list[tuple[str, Inputs]]:
    def each(change: Callable[[Tensor], Any]) -> Inputs:
        def one(value: Any) -> Any:
            return change(value) if isinstance(value, Tensor) else value

        return Inputs(given=tuple(map(one, inputs.given)), named={k: one(v) for k, v in inputs.named.items()})

    return [
        ("nothing in a tensor", each(lambda tensor: tensor.narrow(0, 0, 0))),
        ("None", each(lambda tensor: None)),
        ("one axis less", each(lambda tensor: tensor.select(0, 0) if tensor.ndim else tensor)),
        ("complex numbers", each(lambda tensor: tensor.to(torch.complex64))),
    ]


def _refusal(model: torch.nn.Module, inputs: Inputs) -> str:
    try:
        _plain(model, inputs)
    except Exception as error:  # noqa: BLE001 - whatever a model raises for what it does not take: it is what is asked
        return type(error).__name__
    return ""


def _threads(patched: torch.nn.Module, inputs: Inputs) -> Item:
    expected = forward(patched, inputs)
    apart: list[str] = []

    def work() -> None:
        for _ in range(THREAD_CALLS):
            try:
                with torch.no_grad():
                    found = tensors_of(patched(*inputs.given, **inputs.named))
            except Exception as error:  # noqa: BLE001 - whatever it is, the first thread did not meet it
                apart.append(f"{type(error).__name__}: {first_line(error)}")
                continue
            # products share their sums among threads by their number: the last bits may differ
            same = found.keys() == expected.keys() and all(
                bool((found[name] - one).abs().max() <= ERROR * one.abs().max()) for name, one in expected.items()
            )
            if not same:
                apart.append("another result")

    workers = [threading.Thread(target=work) for _ in range(THREADS)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return Item(
        number="7.2.1.3.4",
        about="safe in threads",
        outcome=_passed(not apart),
        evidence=f"{len(apart)} of {THREADS * THREAD_CALLS} calls in {THREADS} threads: {apart[0]}"
        if apart
        else f"{THREADS * THREAD_CALLS} calls in {THREADS} threads give the same",
    )


def _monitoring(compared: Compared, model: torch.nn.Module, patched: torch.nn.Module, inputs: Inputs) -> list[Item]:
    replaced = compared.receipt.replaced
    operators = sorted({name for line in replaced for name in line.operators})
    own = sorted({name for line in replaced if not line.by_torch for name in line.implementations})
    return [
        Item(
            number="7.2.1.4.1",
            about="what runs can be asked",
            outcome=_passed(bool(replaced)),
            evidence=f"model.receipt() counts calls and kernels of {len(compared.receipt.lines)} call sites",
        ),
        Item(
            number="7.2.1.4.2",
            about="accuracy has a threshold, and what runs has passed it",
            outcome=Outcome.PASS if own else Outcome.NOT_APPLICABLE,
            evidence=f"dispatch takes what passed: {', '.join(own)}"
            if own
            else f"PyTorch computes all: opforge qualify {' '.join(operators)}",
        ),
        Item(
            number="7.2.1.4.3",
            about="alarms are set",
            outcome=Outcome.NOT_APPLICABLE,
            evidence=f"they are your pipeline's: opforge check {' '.join(operators[:4])} ends with 1 where one is due",
        ),
        _fallback(model, patched, inputs),
    ]


def _fallback(model: torch.nn.Module, patched: torch.nn.Module, inputs: Inputs) -> Item:
    """In float64, which no operator has, PyTorch computes what the unpatched model does."""

    def wide(value: Any) -> Any:
        return value.double() if isinstance(value, Tensor) and value.is_floating_point() else value

    given = Inputs(given=tuple(map(wide, inputs.given)), named={k: wide(v) for k, v in inputs.named.items()})
    theirs, mine = forward(copy.deepcopy(model).double(), given), forward(copy.deepcopy(patched).double(), given)
    same = theirs.keys() == mine.keys() and all(
        torch.allclose(theirs[k], mine[k], rtol=1e-6, atol=1e-7) for k in theirs
    )
    return Item(
        number="7.2.1.4.4",
        about="there is a fallback",
        outcome=_passed(same),
        evidence="in float64, which operators do not have, PyTorch computes what they leave"
        if same
        else "in float64, which operators do not have, the patched model gives something else",
    )


FP8: Mapping[str, str] = {
    "5.2A.4.1.1": "amax of each layer is watched",
    "5.2A.4.1.2": "scales settle",
    "5.2A.4.1.3": "quantisation loses less than 2 % in all",
    "5.2A.4.1.4": "zeros, extremes, NaN and infinities are handled",
    "5.2A.4.2.1": "inference is 1.5 times as fast",
    "5.2A.4.2.2": "memory is 40 % less",
    "5.2A.4.2.3": "tensor cores are used for 80 %",
    "5.2A.4.2.4": "the difference from float16 is below 1 %",
}


def _fp8(model: torch.nn.Module) -> list[Item]:
    has = any("float8" in str(one.dtype) for one in (*model.parameters(), *model.buffers()))
    words = "it is not asked of a patched model: opforge verify quantize_fp8 linear_fp8" if has else "no weight is FP8"
    return [
        Item(number=number, about=about, outcome=Outcome.NOT_APPLICABLE, evidence=words)
        for number, about in FP8.items()
    ]


def page(name: str, items: tuple[Item, ...]) -> str:
    """The checklist as a page of HTML that stands alone."""
    from html import escape

    rows = "".join(
        f'<tr class="{item.outcome.split()[0]}"><td>{item.number}</td><td>{escape(item.about)}</td>'
        f"<td>{item.outcome}</td><td>{escape(item.evidence)}</td></tr>"
        for item in items
    )
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>Checklist: {escape(name)}</title><style>'
        "body{font:15px system-ui;margin:2em auto;max-width:72em;padding:0 1em}table{border-collapse:collapse}"
        "td,th{text-align:left;padding:.35em .8em;border-bottom:1px solid #8884;vertical-align:top}"
        ".pass td:nth-child(3){color:#17803d}.fail td:nth-child(3){color:#c0262d;font-weight:600}.not{opacity:.65}"
        "@media (prefers-color-scheme:dark){body{background:#14161a;color:#dde}}</style>"
        f"<h1>Checklist: {escape(name)}</h1><p>{summary(items)}</p>"
        f"<table><tr><th>item</th><th>what</th><th>outcome</th><th>evidence</th></tr>{rows}</table></html>\n"
    )


def summary(items: tuple[Item, ...]) -> str:
    """How many passed, failed and do not apply."""
    return ", ".join(f"{sum(item.outcome is outcome for item in items)} {outcome}" for outcome in Outcome)
