"""What scripts/degraded.py does on a GPU: every candidate compiled and captured first, then timed in each condition.

Two conditions are made by green contexts, which set multiprocessors apart: what is timed gets some of them, and in one
of the two a kernel of our own (scripts/hog.cu) copies through memory on the others. Loading code or asking for memory
may wait for the whole device, which then never is at rest, so nothing of that kind is done while it runs.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import statistics
import subprocess
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from degraded_compile import REGISTERS, compile_all, register_cap
from degraded_points import asked, candidates_of, taken_by, tasks
from space_definitions import Point, Wanted

from opforge.machine import detect
from opforge.registry import load

SHARED_BYTES = 99 << 10
"""Of a block on NVIDIA's consumer devices."""
HOG_UNITS = 24
ROOM_BYTES = 4 << 30
BESIDE_S = 20.0
"""After so long the kernel beside ends by itself: a script that is killed leaves no GPU behind that is taken."""
TURNS, FINAL_TURNS = 5, 21
BATCH_S = 6e-4


class Part:
    """Some of the device's multiprocessors: a green context with a stream, where kernels find no others.

    A kernel beside the timed one that holds multiprocessors does not do: on an H100 sleeping blocks on half of them
    slowed a product on the others to 1/80, and PyTorch's copy to a quarter.
    """

    def __init__(self, resource: Any) -> None:
        import torch
        from cuda.bindings import driver

        description = _asked(driver.cuDevResourceGenerateDesc([resource], 1))
        flag = driver.CUgreenCtxCreate_flags.CU_GREEN_CTX_DEFAULT_STREAM
        self._context = _asked(driver.cuGreenCtxCreate(description, _device(), flag))
        flag = driver.CUstream_flags.CU_STREAM_NON_BLOCKING
        self.stream = torch.cuda.ExternalStream(int(_asked(driver.cuGreenCtxStreamCreate(self._context, flag, 0))))
        self.units = int(resource.sm.smCount)


def parted(least: int) -> tuple[Part, Part]:
    """`least` multiprocessors, or as few more as the driver can set apart, and the rest of them."""
    import torch

    torch.cuda.init()  # the driver answers nothing before
    try:
        from cuda.bindings import driver
    except ImportError as error:
        raise RuntimeError(
            "Setting multiprocessors apart needs NVIDIA's bindings: pip install cuda-bindings"
        ) from error
    kind = driver.CUdevResourceType.CU_DEV_RESOURCE_TYPE_SM
    groups, count, rest = _asked(
        driver.cuDevSmResourceSplitByCount(1, _asked(driver.cuDeviceGetDevResource(_device(), kind)), 0, least)
    )
    if not count or not rest.sm.smCount:
        raise RuntimeError(f"the driver sets no {least} multiprocessors apart here")
    return Part(groups[0]), Part(rest)


def graphs_keep_to(part: Part, whole: Any) -> bool:
    """Whether a graph that was captured on a part's stream runs on that part alone: a product of 4096 takes half as
    long again there at the least. What does not keep to it is called, not replayed.
    """
    import torch

    operands = [torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16) for _ in range(2)]
    out = torch.empty_like(operands[0])

    def product(given: Sequence[Any]) -> Any:
        return torch.matmul(given[0], given[1], out=out)

    seconds = [times({0: capture(product, [operands], on)}, on, TURNS)[0] for on in (whole, part.stream)]
    print(f"a product of 4096 in a graph: {seconds[0] * 1e6:.0f} us on the whole device, {seconds[1] * 1e6:.0f} us on "
          f"{part.units} multiprocessors", flush=True)  # fmt: skip
    return seconds[1] > 1.5 * seconds[0]


def _device() -> Any:
    from cuda.bindings import driver

    return _asked(driver.cuDeviceGet(0))


_asked = functools.partial(asked, lacking=": multiprocessors cannot be set apart here")


class Hog:
    """A kernel that copies through memory all the time: `with hog(part): …`."""

    def __init__(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            library = Path(folder, "hog.so")
            source = Path(__file__).resolve().parent / "hog.cu"
            subprocess.run(
                ["nvcc", "-shared", "-Xcompiler", "-fPIC", "-arch=native", "-O2", "-o", str(library), str(source)],
                check=True,
            )
            self.library = ctypes.CDLL(str(library))
        self.library.prepare.argtypes = [ctypes.c_longlong]
        self.library.start.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_double]
        self._asked(self.library.prepare(ROOM_BYTES))

    @staticmethod
    def _asked(code: int) -> None:
        if code:
            raise RuntimeError(f"CUDA answered {code}: the kernel beside the timed ones cannot run")

    @contextlib.contextmanager
    def __call__(self, part: Part) -> Iterator[None]:
        blocks = 2 * part.units
        self._asked(self.library.start(part.stream.cuda_stream, blocks, BESIDE_S))
        try:
            until = time.monotonic() + 2
            while self.library.seated() < blocks:
                if time.monotonic() > until:
                    raise RuntimeError(f"{self.library.seated()} of {blocks} blocks found a seat")
            yield
        finally:
            self._asked(self.library.stop())


@dataclass(frozen=True)
class Captured:
    """A candidate that runs: `replay` is `calls` calls. `keep` holds what the graph reads and writes.

    A graph has addresses and owns none of the tensors behind them. They were let go when the next task was prepared,
    and the next capture gave their memory back to the device (torch.cuda.graph empties the cache first): replays then
    read what was no longer there, "an illegal memory access".
    """

    replay: Callable[[], Any]
    calls: int
    keep: tuple[Any, ...]


def capture(
    call: Callable[[Sequence[Any]], Any], copies: Sequence[Sequence[Any]], stream: Any, graphs: bool = True
) -> Captured:
    """Calls in a CUDA graph, replayed twice so that nothing is left to load; without graphs the same calls, one after
    the other.
    """
    import torch

    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        call(copies[0])
        begin.record(stream)
        call(copies[-1])
        end.record(stream)
    end.synchronize()
    calls = max(1, min(64, round(BATCH_S / max(begin.elapsed_time(end) / 1e3, 4e-6))))

    def run() -> None:
        for step in range(calls):
            call(copies[step % len(copies)])

    if not graphs:
        return Captured(run, calls, (call, copies))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        run()
    with torch.cuda.stream(stream):
        for _ in range(2):
            graph.replay()
    torch.cuda.synchronize()
    # the call holds the outputs, the copies are the inputs
    return Captured(graph.replay, calls, (graph, call, copies))


def times(candidates: Mapping[Any, Captured], stream: Any, turns: int) -> dict[Any, float]:
    """Median seconds of a call of each, all in turn. Waits for events alone: the device may be busy for good."""
    import torch

    samples: dict[Any, list[float]] = {name: [] for name in candidates}
    with torch.cuda.stream(stream):
        for _ in range(turns):
            for name, one in candidates.items():
                begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
                begin.record(stream)
                one.replay()
                end.record(stream)
                end.synchronize()
                samples[name].append(begin.elapsed_time(end) / 1e3 / one.calls)
    return {name: statistics.median(found) for name, found in samples.items()}


def roof_call(task: Wanted, tensors: Sequence[Any]) -> Callable[[Sequence[Any]], Any]:
    """What the device gives at best for this work: PyTorch's product, or a copy of as many bytes."""
    import torch

    if task.operator == "matmul":
        out = torch.empty((task.axes["m"], task.axes["n"]), dtype=tensors[0].dtype, device=tensors[0].device)
        return lambda given: torch.matmul(given[0], given[1], out=out)
    room = torch.empty_like(tensors[0])
    return lambda given: room.copy_(given[0])


def measured(folder: Path, script: Path, jobs: int, limit_s: float) -> dict[str, Any]:
    """Times in every condition: {"conditions": {name: why}, "tasks": {name: {"labels", "conditions": …}}}."""
    with tempfile.TemporaryDirectory(prefix="opforge-degraded-", ignore_cleanup_errors=True) as scratch:
        # beside the folder: thousands of files that nobody reads afterwards
        os.environ["TRITON_CACHE_DIR"] = scratch
        return _measured(folder, script, jobs, limit_s)


def _measured(folder: Path, script: Path, jobs: int, limit_s: float) -> dict[str, Any]:
    import direct
    import torch

    began = time.monotonic()
    shared = compile_all(folder, script, jobs, 0.5 * limit_s)
    print(f"{len(shared)} points compiled in {time.monotonic() - began:.0f} s", flush=True)
    hog, whole = Hog(), torch.cuda.Stream()
    units = torch.cuda.get_device_properties(0).multi_processor_count
    # multiprocessors are set apart eight by eight: of 132 the half is 64
    half, (hogged, beside) = parted(units // 2 // 8 * 8)[0], parted(HOG_UNITS)
    graphs = graphs_keep_to(half, whole)
    streams = {"original": whole, "half the units": half.stream, "low_bw": beside.stream}
    plans = []
    registers: dict[tuple[str, int, None], int] = {}
    for task in tasks():
        registry = load()
        operator = registry.operator(task.operator)
        scalars = operator.scalar_values(task.scalars)
        points = candidates_of(task, detect("cuda"))
        tensors = direct.tensors_for(operator, task.axes, task.dtype, scalars, "cuda", "contiguous")
        copies = direct.copies_of(tensors)
        eager = next(item for item in registry.implementations(task.operator) if item.backend == "torch")
        answer = direct.prepared(operator, eager, tensors, task.axes, task.dtype, scalars)
        expected = answer(tensors).clone()
        room = [torch.empty_like(expected)]
        captured: dict[tuple[int | None, str], dict[int, Captured]] = defaultdict(dict)
        reasons: dict[tuple[int | None, str], dict[int, str]] = defaultdict(dict)
        for cap in (None, REGISTERS):
            # a capped kernel is timed on the whole device alone
            parts = streams if cap is None else {"original": whole}
            for place, point in enumerate(points):
                key, of_triton = (task.name, place, None), point.implementation.backend == "triton"
                refusal = "no time left" if time.monotonic() - began > 0.75 * limit_s else None
                if cap is not None and of_triton and (task.name, place, cap) not in shared:
                    refusal = f"does not compile with {cap} registers"
                elif cap is not None and registers.get(key, 0) > cap:
                    # no other compiler is told of the cap: as it is, a kernel keeps to it or not
                    refusal = f"takes {registers[key]} registers"
                if refusal is None:
                    try:
                        with register_cap(cap):
                            call = _checked(operator, point, task, tensors, scalars, expected, room)
                        if cap is None and not of_triton:
                            registers[key], shared[key] = taken_by(call, tensors)
                    except direct.kernel_errors() as error:
                        refusal = direct.reason_of(error)
                for name, on in parts.items():
                    if refusal is not None:
                        reasons[cap, name][place] = refusal
                        continue
                    try:
                        # a cluster of blocks may find no place on a part
                        with register_cap(cap):
                            captured[cap, name][place] = capture(call, copies, on, graphs)
                    except direct.kernel_errors() as error:
                        reasons[cap, name][place] = direct.reason_of(error)
        roof = {name: capture(roof_call(task, tensors), copies, on, graphs) for name, on in streams.items()}
        plans.append((task, points, captured, reasons, roof))
        counts = ", ".join(f"{len(captured[None, name])} {name}" for name in streams)
        print(f"{task.name}: {counts}, {len(captured[REGISTERS, 'original'])} capped, {time.monotonic() - began:.0f} s")
        for reason, count in Counter(reason for by_place in reasons.values() for reason in by_place.values()).items():
            print(f"  {count} x {reason}", flush=True)
    found: dict[str, Any] = {"conditions": _conditions(units, half.units, hogged.units), "tasks": {}}
    for task, points, captured, reasons, roof in plans:
        told: dict[str, Any] = {}
        for name, where, cap, most in (
            ("original", "original", None, None),
            ("half the units", "half the units", None, None),
            ("low_bw", "low_bw", None, None),
            ("capped registers", "original", REGISTERS, None),
            ("capped shared memory", "original", None, SHARED_BYTES),
        ):
            mine = {
                place: one
                for place, one in captured[cap, where].items()
                if most is None or (shared.get((task.name, place, None)) or 0) <= most
            }
            stream = streams[where]
            with hog(hogged) if name == "low_bw" else contextlib.nullcontext():
                seconds = times(mine, stream, TURNS)
                final = sorted(seconds, key=lambda place: seconds[place])[:3]
                old = told["original"]["best"] if "original" in told else None
                again = {place: mine[place] for place in {*final, *([old] if old in mine else [])}}
                precise = times({**again, "roof": roof[where]}, stream, FINAL_TURNS)
            roof_s = precise.pop("roof")
            told[name] = {
                "roof_s": roof_s,
                "seconds": {str(place): {**seconds, **precise}[place] for place in seconds},
                "best": min(precise, key=lambda place: precise[place]) if precise else None,
                "refused": {
                    **{str(place): reason for place, reason in reasons[cap, where].items()},
                    **{
                        str(place): "more shared memory than there is"
                        for place in captured[cap, where]
                        if place not in mine
                    },
                },
            }
        found["tasks"][task.name] = {
            "labels": [dict(point.label) for point in points],
            "roof": "torch.matmul" if task.operator == "matmul" else "a copy of as many bytes",
            "conditions": told,
        }
    return found


def _conditions(units: int, half: int, hogged: int) -> dict[str, str]:
    return {
        "original": "nothing is taken",
        "half the units": f"{half} of {units} multiprocessors, set apart as a green context",
        "low_bw": f"{units - hogged} of {units} multiprocessors; the others copy through {ROOM_BYTES >> 30} GiB all "
        "the time",
        "capped registers": f"Triton's kernels are compiled with at most {REGISTERS} registers for a thread; of the "
        "others those run that take no more",
        "capped shared memory": f"a block may have {SHARED_BYTES} bytes of shared memory",
    }


def _checked(
    operator: Any, point: Point, task: Wanted, tensors: Any, scalars: Any, expected: Any, room: Sequence[Any]
) -> Any:
    """The candidate as a function of tensors, when it is right; results go to `room`."""
    import direct

    call = direct.prepared(operator, point.implementation, tensors, task.axes, task.dtype, scalars, point.config, room)
    if isinstance(call, str):
        raise RuntimeError(call)
    call(tensors).fill_(float("nan"))
    if not direct.right(call(tensors), expected, task.dtype):
        raise RuntimeError("not what PyTorch computes")
    return call
