"""Measures what this device can do at best: bytes and FLOP a second (machine/probes.py says of what)."""

from __future__ import annotations

import datetime
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from opforge.core.definition.device import ONE_THREAD, Ceiling, DeviceSpec
from opforge.core.language import spans
from opforge.core.language.errors import EnvironmentLacks
from opforge.machine import host_hardware
from opforge.machine.catalogue import detect
from opforge.machine.probes import LARGEST_BATCH, Probe, batch_for, probes
from opforge.machine.saved_ceilings import load_ceilings, save_ceilings

ROUNDS = 20
FEWEST = 3
SAMPLE_S = {"cpu": 0.01}
DEVICE_SAMPLE_S = 0.005
AGAIN_AFTER_S = 60.0
"""A measurement takes some 15 s: whoever claims the impossible again and again makes a run a quarter longer at most."""
_RENEWED: dict[str, float] = {}

Progress = Callable[[str, float], None]


@dataclass(kw_only=True)
class _Running:
    probe: Probe
    batch: int = 1
    samples_s: list[float] = field(default_factory=list)
    alone_s: list[float] = field(default_factory=list)
    """Those of one thread, in processor time."""


def measure_ceilings(
    device: str,
    *,
    budget_s: float = 10.0,
    progress: Progress | None = None,
    clock: Callable[[], float] = time.perf_counter,
    known: Sequence[Ceiling] = (),
) -> DeviceSpec:
    """Measure this machine's `device` (a torch device type) and keep what was found; the DeviceSpec with it.

    The probes are interleaved, round after round, so that a disturbance of a second spoils no single one. A sample is a
    batch of about 10 ms on a processor, 5 ms on an accelerator: long enough to be sustained. The ceiling is the fastest
    sample, because it is what the device can do and everything that disturbs only makes samples slower.

    budget_s   seconds for all rounds, made up of at least 3 and at most 20 of them; preparing takes some seconds more
    progress   called with what is being done and the fraction that is done
    known      ceilings of an earlier measurement, each kept where it is the better one

    A probe that the device refuses (a dtype it lacks) is said to `progress` and left out. Raises EnvironmentLacks when
    torch has no such device or the cache folder cannot be written.
    """
    try:
        import torch
    except ImportError as error:
        raise EnvironmentLacks(
            f"Measuring needs PyTorch, which cannot be imported ({error}). Install it with: pip install torch"
        ) from error
    say = progress or _silent
    spec = detect(device)
    with _exact_float32(), torch.no_grad():
        running = _prepare(device, spec, say, clock)
        start, done = clock(), 0
        while done < ROUNDS and (done < FEWEST or clock() - start < budget_s):
            alone = device == "cpu" and done % 2 == 1
            # of one thread its own processor time counts: what others had in between is not in it
            used = time.thread_time if alone and clock is time.perf_counter else clock
            with _threads(alone=alone):
                for turn in running:
                    share = max(done / ROUNDS, min(1.0, (clock() - start) / max(budget_s, 1e-9)))
                    say(f"{turn.probe.name}, round {done + 1}", min(0.99, 0.1 + 0.9 * share))
                    (turn.alone_s if alone else turn.samples_s).append(_long_sample(device, turn, used))
            done += 1
    say("keeping the result", 1.0)
    save_ceilings(spec, _better(known, [ceiling for turn in running for ceiling in _ceilings(device, turn)]))
    return detect(device)


def ensure_ceilings(device: str, say: Callable[[str], None]) -> None:
    """Measure the ceilings of this machine's `device` (a torch device type) where none are known, which `say` is told
    before: without them no record has a roof, and no time can be doubted.
    """
    if not detect(device).ceilings:
        say(f"measuring what this {device} can do at best (once; kept for later runs) …")
        with spans.span("ceilings", device):
            measure_ceilings(device)


def renewed_ceilings(device: str) -> bool:
    """Whether the ceilings that were measured on this `device` (a torch device type) were measured again now, because
    a result passes them: what was taken while others had the machine is too low. Of each the better one is kept, since
    all that disturbs only makes it worse.

    At most once in AGAIN_AFTER_S: a result that passes these too is doubted. False where none were measured here, or
    where they cannot be kept.
    """
    known, now = load_ceilings(detect(device)), time.monotonic()
    if not known or now - _RENEWED.get(device, -math.inf) < AGAIN_AFTER_S:
        return False
    try:
        measure_ceilings(device, known=known)
    except EnvironmentLacks:
        return False
    finally:
        _RENEWED[device] = time.monotonic()
    return True


def _better(known: Sequence[Ceiling], found: Sequence[Ceiling]) -> list[Ceiling]:
    """Of each ceiling the better one: the larger rate, or fewer seconds."""
    best = {ceiling.name: ceiling for ceiling in known}
    for ceiling in found:
        old = best.get(ceiling.name)
        if old is None or (ceiling.value < old.value if ceiling.unit == "s" else ceiling.value > old.value):
            best[ceiling.name] = ceiling
    return list(best.values())


@contextmanager
def _threads(*, alone: bool) -> Iterator[None]:
    """One thread of torch's, if `alone`. Where others have the processors, threads that wait for each other reach
    0.8 GFLOP/s, and one alone 103 (a product of 256^3, 2 cores, load 10).
    """
    import torch

    threads = torch.get_num_threads()
    if alone:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        if torch.get_num_threads() != threads:
            torch.set_num_threads(threads)


def _prepare(device: str, spec: DeviceSpec, say: Progress, clock: Callable[[], float]) -> list[_Running]:
    running: list[_Running] = []
    say("making buffers", 0.0)
    for make in probes(device, spec):
        try:
            turn = _Running(probe=make())
            _sample(device, turn.probe, 1, clock)
            _long_sample(device, turn, clock)
        except (RuntimeError, AttributeError, TypeError) as error:
            # what a device or a version of torch lacks shows in one of these; the others are measured all the same
            say(f"one probe is left out: {str(error).splitlines()[0] if str(error) else type(error).__name__}", 0.1)
            continue
        running.append(turn)
        say(f"prepared {turn.probe.name}", 0.1)
    return running


def _long_sample(device: str, turn: _Running, clock: Callable[[], float]) -> float:
    """Seconds per run, over a batch that is made larger until it lasts: a first run that was disturbed must not fix its
    size.
    """
    least_s = SAMPLE_S.get(device, DEVICE_SAMPLE_S)
    while True:
        seconds = _sample(device, turn.probe, turn.batch, clock)
        if seconds * turn.batch >= least_s / 2 or turn.batch >= LARGEST_BATCH:
            return seconds
        turn.batch = max(2 * turn.batch, batch_for(seconds, least_s))


def _sample(device: str, probe: Probe, batch: int, clock: Callable[[], float]) -> float:
    """Seconds per run over `batch` runs, on the device's own clock where it has one."""
    import torch

    run = probe.run
    if device == "cpu" or probe.on_host:
        start = clock()
        for _ in range(batch):
            run()
        elapsed = clock() - start
        if device != "cpu":
            torch.accelerator.synchronize()
        return elapsed / batch
    begin, end = torch.Event(device, enable_timing=True), torch.Event(device, enable_timing=True)
    begin.record()
    for _ in range(batch):
        run()
    end.record()
    torch.accelerator.synchronize()
    milliseconds: float = begin.elapsed_time(end)
    return milliseconds / 1e3 / batch


def _silent(words: str, fraction: float) -> None:
    return None


def _ceilings(device: str, turn: _Running) -> Iterator[Ceiling]:
    """What the device reaches; of arithmetic also what one thread of a processor does in its own time, which says what
    all of them might reach where others had the processors.
    """
    samples = [*turn.samples_s, *turn.alone_s]
    yield _ceiling(device, turn, turn.probe.name, samples, turn.probe.about)
    if turn.alone_s and turn.probe.unit == "FLOP/s":
        yield _ceiling(device, turn, f"{turn.probe.name}{ONE_THREAD}", turn.alone_s, f"{turn.probe.about}, one thread")


def _ceiling(device: str, turn: _Running, name: str, samples_s: Sequence[float], about: str) -> Ceiling:
    return Ceiling(
        name=name,
        value=turn.probe.value(min(samples_s)),
        unit=turn.probe.unit,
        measured_at=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        how=f"{about}; fastest of {len(samples_s)} samples of {turn.batch} "
        f"{'run' if turn.batch == 1 else 'runs'}; {_conditions(device)}",
    )


def _conditions(device: str) -> str:
    import torch

    if device != "cpu":
        return f"torch {torch.__version__}"
    average = host_hardware.load_average()
    return (
        f"torch {torch.__version__}, {torch.get_num_threads()} threads and one by turns, load "
        f"{'unknown' if average is None else f'{average:.1f}'}"
    )


@contextmanager
def _exact_float32() -> Iterator[None]:
    """float32 products in IEEE float32, whatever the process chose; its choice comes back."""
    import torch

    chosen: Any = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(chosen)
