"""Times for scripts/attention_matrix.py: calls are made ready by several processes at once, and timed one at a time.

What costs time is not the call: Triton compiles a kernel in a second, a CUDA graph takes some 10 ms. So a process takes
the cells of one operator, feature and head dimension together, whose masks and heads share kernels and inputs, and
makes them ready while others do the same; then it has the device for itself: no process makes anything ready while one
times.

A time is the median of five batches of calls, replayed from a CUDA graph, each right behind another batch that is not
counted, so that nothing waits for the host; the backends of a cell take turns. The calls of a batch take their inputs
in turn from copies that are together larger than any cache here. PyTorch's calls are no graph: the median of three.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import fcntl
import itertools
import math
import os
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

from attention_matrix import DIMS, PAGES, PASS, TIMED, Answer, Cell, case_of, keep, part_of

TURNS, TURNS_CALLED = 5, 3
"""Batches that are timed: of CUDA graphs, and of PyTorch's calls."""
TOGETHER_S = 15.0
"""A process makes groups of cells ready for so long before it times them."""
BATCH_S, MOST_CALLS = 2.5e-3, 24
"""A batch has so many seconds of calls, their host's time included, or so many calls."""
COPIES_BYTES = 64 << 20
"""Of a call's inputs, all copies together: more than the 50 MB that H100 and H200 cache."""


class Device:
    """Who may use the device: many processes that make calls ready, or one that times.

    Two locks: who waits to time holds the first, so that nobody who begins to make ready passes it. Without a file
    there is one process alone.
    """

    def __init__(self, path: Path | None) -> None:
        self.files = [] if path is None else [path.with_name(f"{path.name}.{name}").open("w") for name in "ab"]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for file in self.files:
            file.close()

    @contextlib.contextmanager
    def shared(self) -> Iterator[None]:
        """Beside others that make calls ready."""
        if self.files:
            fcntl.flock(self.files[0], fcntl.LOCK_EX)
            fcntl.flock(self.files[1], fcntl.LOCK_SH)
            fcntl.flock(self.files[0], fcntl.LOCK_UN)
        try:
            yield
        finally:
            if self.files:
                fcntl.flock(self.files[1], fcntl.LOCK_UN)

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Nobody else makes anything ready or times."""
        for file in self.files:
            fcntl.flock(file, fcntl.LOCK_EX)
        try:
            yield
        finally:
            for file in reversed(self.files):
                fcntl.flock(file, fcntl.LOCK_UN)


@dataclass(frozen=True)
class Ready:
    """A call that only has to be run: a batch of `calls` calls. `held` is the memory that a graph reads and writes."""

    answer: Answer
    run: Callable[[], Any]
    calls: int
    turns: int
    held: Any


class Inputs:
    """Random tensors where calls run. Cells that differ in their masks have the same ones."""

    def __init__(self, device: str) -> None:
        self.device = device
        self.made: dict[tuple[Any, ...], Any] = {}

    def of_call(self, operator: Any, case: Any, dtype: str, copy: int) -> list[Any]:
        """The tensors of a call; None for what is not given."""
        from opforge.core.definition.shapes import full_shape

        found: list[Any] = []
        for spec in operator.inputs:
            if spec.optional and not case.scalars[f"has_{spec.name}"]:
                found.append(None)
                continue
            shape = full_shape(spec.shape, case.axes)
            key = (spec.name, tuple(shape), spec.dtype_for(dtype, case.scalars), copy)
            if key not in self.made:
                self.made[key] = self._tensor(spec, shape, case, key[2])
            found.append(self.made[key])
        return found

    def _tensor(self, spec: Any, shape: Sequence[int], case: Any, dtype: str) -> Any:
        import torch

        keys = case.axes.get("keys", case.axes.get("total_k", PAGES * case.axes.get("page", 1)))
        if spec.offsets is not None:
            made = torch.arange(shape[0], device=self.device) * case.axes[spec.offsets] // max(1, shape[0] - 1)
            return made.int()
        if spec.name == "block_table":
            return torch.arange(case.axes["pages"], device=self.device).int().reshape(shape)
        if spec.name in ("key_lengths", "lengths"):
            return torch.full(shape, keys, dtype=torch.int32, device=self.device)
        if spec.name == "mask":
            return torch.rand(shape, device=self.device) < 0.9
        if spec.name == "alibi_slopes":
            # as models have them: under a negative one weights grow with the distance, out of their range
            return torch.rand(shape, device=self.device) * 0.5
        # weights of a backward pass sum to about 1
        made = torch.randn(shape, device=self.device) + (math.log(keys) if spec.name == "lse" else 0)
        return made.to(getattr(torch, dtype))

    def copies(self, operator: Any, case: Any, dtype: str) -> list[list[Any]]:
        """Tensors of the same call several times over, COPIES_BYTES of them where MOST_CALLS copies are enough."""
        first = self.of_call(operator, case, dtype, 0)
        if self.device == "cpu":
            return [first]
        size = sum(tensor.numel() * tensor.element_size() for tensor in first if tensor is not None)
        count = max(2, min(MOST_CALLS, math.ceil(COPIES_BYTES / max(1, size))))
        return [self.of_call(operator, case, dtype, copy) for copy in range(count)]


def compiled_before(homes: Sequence[str], item: Any) -> None:
    """Let Triton find what the verification has compiled: it keeps a folder for each implementation."""
    from opforge.backends import cache
    from opforge.backends.shared_code import source_sha256

    if item.backend == "triton":
        folder = cache.jit_folder(homes, item.backend, source_sha256(item.source))
        os.environ["TRITON_CACHE_DIR"] = str(folder / "triton")


def batched(call: Callable[[Any], Any], copies: Sequence[Sequence[Any]]) -> tuple[Callable[[], Any], int]:
    """A CUDA graph of some calls, each of the copies in turn, and how many they are. PyTorch's own way to make one
    gives memory back before each, which costs more than all the rest.
    """
    import torch

    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    call(copies[-1])
    end.record()
    end.synchronize()
    count = math.ceil(BATCH_S / max(begin.elapsed_time(end) / 1e3, 8e-6))
    count = max(4, len(copies), min(MOST_CALLS, count))
    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        graph.capture_begin(capture_error_mode="thread_local")
        try:
            for step in range(count):
                call(copies[step % len(copies)])
        finally:
            graph.capture_end()
    return graph.replay, count


def called(call: Callable[[Any], Any], copies: Sequence[Sequence[Any]]) -> Callable[[], Any]:
    """One call, of the next copy each time."""
    turn = itertools.cycle(copies)
    return lambda: call(next(turn))


def made_ready(
    operator: Any,
    items: Mapping[str, Any],
    homes: Sequence[str],
    asked: Sequence[Answer],
    inputs: Inputs,
) -> list[Ready | Answer]:
    """The calls that the answers about one cell speak of, on the same inputs; an answer without a time where that does
    not work or the result is not near the definition's.
    """
    from direct import kernel_errors, prepared, reason_of, right

    case, dtype, device = case_of(operator, asked[0].cell, TIMED), asked[0].dtype, inputs.device
    scalars = operator.scalar_values(case.scalars)
    cost = operator.cost(case.axes, dtype, case.scalars)
    copies = inputs.copies(operator, case, dtype)
    expected: Any = None
    result: list[Ready | Answer] = []
    try:
        definition = prepared(operator, items["torch_definition"], copies[0], case.axes, dtype, scalars)
        expected = definition if isinstance(definition, str) else definition(copies[0])
    except kernel_errors() as error:
        expected = reason_of(error)
    for plain in asked:
        answer, item = replace(plain, flops=float(cost.flops), bytes=float(cost.bytes)), items[plain.implementation]
        why = expected if isinstance(expected, str) else ""
        try:
            compiled_before(homes, item)
            call = prepared(operator, item, copies[0], case.axes, dtype, scalars)
            if isinstance(call, str):
                why = call
            elif not why and not right(call(copies[0]), expected, dtype):
                why = "its result is not near the definition's"
            if not why and not isinstance(call, str):
                graph = device != "cpu" and item.backend != "torch"
                run, calls = batched(call, copies) if graph else (called(call, copies), 1)
                result.append(Ready(answer, run, calls, TURNS if graph else TURNS_CALLED, (call, copies)))
                continue
        except kernel_errors() as error:
            why = reason_of(error)
        print(f"{case.name} {answer.cell.direction}: {item.name} is not timed: {why}", flush=True)
        result.append(answer)
    return result


def with_times(group: Sequence[Ready | Answer], device: str) -> list[Answer]:
    """The answers about one cell with their times, all that are ready taking turns; without one where a call fails
    now.
    """
    from direct import kernel_errors, reason_of

    samples: list[list[float] | None] = [[] for _ in group]
    card = card_of(device)
    for turn in range(TURNS):
        for place, one in enumerate(group):
            taken = samples[place]
            if taken is None or not isinstance(one, Ready) or turn >= one.turns:
                continue
            try:
                taken.append(seconds_of(one, device))
            except kernel_errors() as error:
                print(f"{one.answer.cell}: {one.answer.implementation} is not timed: {reason_of(error)}", flush=True)
                samples[place] = None
    result = []
    for one, taken in zip(group, samples, strict=True):
        if not isinstance(one, Ready):
            result.append(one)
        elif taken:
            result.append(replace(one.answer, seconds=statistics.median(taken), card=card))
        else:
            result.append(one.answer)
    return result


def card_of(device: str) -> str:
    """The name of what times are taken on."""
    if device == "cpu":
        return device
    import torch

    return torch.cuda.get_device_name()


def seconds_of(ready: Ready, device: str) -> float:
    """Seconds of one call in a batch that follows another."""
    import torch

    if device == "cpu":
        began = time.perf_counter()
        ready.run()
        return time.perf_counter() - began
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    ready.run()
    begin.record()
    ready.run()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / 1e3 / ready.calls


def preferred(
    found: Sequence[Answer], items: Callable[[str], Mapping[str, Any]]
) -> tuple[dict[Cell, list[Answer]], list[Answer]]:
    """Of each cell and backend the Pass of the implementation that its operator prefers, by cell; and all the rest."""
    best: dict[tuple[Cell, str], Answer] = {}
    rest = []
    for answer in found:
        if answer.verdict != PASS:
            rest.append(answer)
            continue
        order, key = list(items(answer.cell.operator)), (answer.cell, answer.backend)
        before = best.get(key)
        if before is not None and order.index(before.implementation) <= order.index(answer.implementation):
            rest.append(answer)
            continue
        rest += [] if before is None else [before]
        best[key] = answer
    cells: dict[Cell, list[Answer]] = collections.defaultdict(list)
    for (cell, _), answer in best.items():
        cells[cell].append(answer)
    return cells, rest


def groups_of(cells: Sequence[Cell]) -> list[list[Cell]]:
    """Cells that share kernels and inputs, together; what takes longest first."""
    found: dict[tuple[str, str, str], list[Cell]] = collections.defaultdict(list)
    for cell in cells:
        found[cell.operator, cell.feature, cell.dim].append(cell)
    return sorted(found.values(), key=lambda group: (group[0].direction, -sum(DIMS[group[0].dim])))


def taken(folder: Path | None, name: str) -> bool:
    """Whether this process is the first to ask for a group, of all that are given the same folder."""
    if folder is None:
        return True
    folder.mkdir(parents=True, exist_ok=True)
    try:
        (folder / name).touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def timed(options: argparse.Namespace, found: Sequence[Answer]) -> list[Answer]:
    """The answers about this process's cells, one Pass of each cell and backend with seconds of a call. What has a time
    keeps it.
    """
    import torch

    from opforge.registry import load

    registry, began = load([]), time.monotonic()
    homes = tuple(str(home.path) for home in registry.homes)
    device = options.device or ("cuda" if torch.cuda.is_available() else "cpu")
    known: dict[str, dict[str, Any]] = {}

    def items(name: str) -> dict[str, Any]:
        if name not in known:
            known[name] = {item.name: item for item in registry.implementations(name)}
        return known[name]

    mine = set(part_of(list(dict.fromkeys(answer.cell for answer in found)), options.part))
    own = [answer for answer in found if answer.cell in mine and answer.backend in ("", *options.backends)]
    wanted, rest = preferred(own, items)
    result: list[Answer] = rest if options.claims is None else []
    queue = groups_of(list(wanted))
    if options.claims is None:
        result += [answer for answers in wanted.values() for answer in answers if answer.seconds is not None]
    with Device(options.lock) as held:
        while queue:
            inputs, ready, names = [], [], []
            with held.shared():
                begun = time.monotonic()
                while queue and time.monotonic() - begun < TOGETHER_S:
                    group = queue.pop(0)
                    name = f"{group[0].operator}, {group[0].dim.replace('/', '-')}, {group[0].feature}"
                    missing = [[answer for answer in wanted[cell] if answer.seconds is None] for cell in group]
                    missing = [answers for answers in missing if answers]
                    late = (begun - began) / 60 > options.minutes
                    if late or not missing or not taken(options.claims, name):
                        result += [] if options.claims else [answer for answers in missing for answer in answers]
                        continue
                    torch.manual_seed(0)
                    inputs.append(Inputs(device))
                    operator = registry.operator(group[0].operator)
                    ready += [
                        made_ready(operator, items(operator.name), homes, answers, inputs[-1]) for answers in missing
                    ]
                    names.append(f"{name} ({len(missing)})")
                if device != "cpu":
                    torch.cuda.synchronize()
            asked = time.monotonic()
            with held.alone():
                alone = time.monotonic()
                for one in ready:
                    result += with_times(one, device)
                ended = time.monotonic()
            del ready, inputs
            keep(options.json, result)
            print(
                f"[{ended - began:4.0f} s] timed: {'; '.join(names)}: ready in {asked - begun:.1f} s, waited "
                f"{alone - asked:.1f} s, had the device for {ended - alone:.1f} s",
                flush=True,
            )
    return result
