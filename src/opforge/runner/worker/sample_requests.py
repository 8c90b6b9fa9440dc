"""What a request for samples asks, and how it reaches the sampler: through a pipe, so that nothing in a worker's Python
says how a call will be
used, for a measurement or for a judgement, before it is over."""

from __future__ import annotations

import ctypes
import os
import shutil
import struct
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from time import perf_counter as _perf_counter
from typing import NamedTuple

from opforge.backends import cache
from opforge.core.language.errors import NotNow, OpforgeError
from opforge.runner.wire.messages import AGAIN, NEW, OTHER, PAUSE, UNTOUCHED
from opforge.runner.worker.clocks import RunFunction

SOURCE = Path(__file__).resolve().parents[2] / "device" / "include" / "opforge" / "abi" / "sampler.cpp"
FLAGS = ("-std=c++17", "-O2", "-fPIC", "-shared", "-fvisibility=hidden")
FORM = struct.Struct("=7q")
PLACE = struct.Struct("=2q8s8s")
SPAN = struct.Struct("=3q")
STEP = struct.Struct("=2q")
MOST_SAMPLES = 1 << 12
NO_MEMORY = -3
"""What the native sampler says where its copy of the inputs has no room."""
LEAST_PAUSE_S = 2e-6


@dataclass(frozen=True, kw_only=True)
class SampleRequest:
    """One request for samples by the host's clock.

    written    OTHER content than that of the last call: what is made of the inputs beforehand is made again; SAME: as
               much is done where nothing has changed (runner.wire.messages)
    lead       calls that are not timed, before the samples
    batch      calls in a sample
    count      samples; 0 for a request that only warms
    collected  whether what the last call left is put into the arena
    places     elements of inputs that are written before each sample: their offset in the arena, what stands there in
               one content, and in another (equally many bytes, at most 8)
    contents   of each sample, which of the two it is taken on, where there are places
    spans      tensors whose contents change as a whole: their offset in the arena, their bytes, and the bytes that stay
               together where they are turned (0: an output, which holds what it held at first where inputs are NEW)
    steps      where there are spans: what happens before the lead, and before each sample (runner.wire.messages), and
               by how many grains the inputs are turned. Afterwards they are what they were, unless the result is
               collected
    """

    written: int = 0
    lead: int = 0
    batch: int = 1
    count: int = 1
    collected: bool = False
    places: tuple[tuple[int, bytes, bytes], ...] = ()
    contents: bytes = b""
    spans: tuple[tuple[int, int, int], ...] = ()
    steps: tuple[tuple[int, int], ...] = ()

    def sent(self) -> int:
        """A descriptor from which it can be read once."""
        theirs, ours = os.pipe()
        try:
            numbers = (self.written, self.lead, self.batch, self.count, self.collected)
            shape = FORM.pack(*numbers, len(self.places), len(self.spans))
            places = b"".join(PLACE.pack(offset, len(one), one, other) for offset, one, other in self.places)
            spans = b"".join(SPAN.pack(*span) for span in self.spans)
            steps = b"".join(STEP.pack(*step) for step in self.steps)
            os.write(ours, shape + places + self.contents + spans + steps)
        finally:
            os.close(ours)
        return theirs


class Taken(NamedTuple):
    """Seconds per call, the seconds of the lead and of copies, the calls in a sample, and whether the last result was
    asked for.
    """

    samples: list[float]
    led: float
    batch: int
    collected: bool


Sampler = Callable[[RunFunction, RunFunction, RunFunction, int, int, int], Taken]


@lru_cache(maxsize=1)
def _library() -> ctypes.PyDLL | None:
    try:
        return ctypes.PyDLL(str(_compiled()))
    except (OSError, OpforgeError, subprocess.SubprocessError):
        return None


def fill_caches() -> Callable[[], None] | None:
    """What fills this thread's caches of small blocks, as the native sampler does (result_memory.py); None where there
    is no compiler.
    """
    library = _library()
    return library.opforge_fill_caches if library is not None else None


@lru_cache(maxsize=1)
def sampler() -> Sampler:
    """The native sampler, compiled once and kept; the one in Python where there is no compiler. Both take the run, what
    makes it ready, what does as much where nothing has changed (the same object where a forward pass keeps what it made
    of the inputs), the descriptor of a SampleRequest, the address of the arena that its places lie in, and before how
    many calls caches are filled, which the one in Python leaves. They give what was Taken."""
    library = _library()
    if library is None:
        return in_python
    function = library.opforge_sample
    function.restype = ctypes.c_int64
    function.argtypes = [
        ctypes.py_object,
        ctypes.py_object,
        ctypes.py_object,
        ctypes.c_int,
        ctypes.POINTER(ctypes.c_double),
        ctypes.c_int64,
        ctypes.POINTER(ctypes.c_int64),
        ctypes.c_void_p,
        ctypes.c_int64,
    ]

    def native(
        run: RunFunction, ready: RunFunction, same: RunFunction, descriptor: int, memory: int = 0, filled: int = 0
    ) -> Taken:
        seconds, told = (ctypes.c_double * MOST_SAMPLES)(), (ctypes.c_int64 * 2)()
        # what a call raises comes out of here as it is
        count = function(run, ready, same, descriptor, seconds, MOST_SAMPLES, told, memory, filled)
        if count == NO_MEMORY:
            raise NotNow("there is no memory left for a copy of the inputs. Run it again when others are done")
        if count < 0:
            raise ValueError("the request for samples cannot be read")
        return Taken(list(seconds[:count]), seconds[count], told[0], bool(told[1]))

    return native


def in_python(
    run: RunFunction,
    ready: RunFunction,
    same: RunFunction,
    descriptor: int,
    memory: int = 0,
    filled: int = 0,
    clock: Callable[[], float] = _perf_counter,
) -> Taken:
    """As the native sampler. A kernel in Python can see it in the frames above its own."""
    written, lead, batch, count, collected, number, tensors = FORM.unpack(os.read(descriptor, FORM.size))
    places = [PLACE.unpack(os.read(descriptor, PLACE.size)) for _ in range(number)]
    contents = os.read(descriptor, count) if places else b""
    spans = [SPAN.unpack(os.read(descriptor, SPAN.size)) for _ in range(tensors)]
    steps = [STEP.unpack(os.read(descriptor, STEP.size)) for _ in range(1 + count)] if spans else []
    copied = clock()
    whole = _Contents(spans, memory, clock)
    if spans:
        whole.before(*steps[0])
    copies = clock() - copied if spans else 0.0
    if written:
        (ready if written == OTHER else same)()
    start = clock()
    for _ in range(lead):
        run()
    led = clock() - start + copies
    samples = []
    for at in range(count):
        for offset, width, *values in places:
            ctypes.memmove(memory + offset, values[contents[at]], width)
        if places and ready is same:
            # what a forward pass keeps of the inputs is made again wherever they were written
            ready()
        if spans:
            kind, turn = steps[1 + at]
            whole.before(kind, turn)
            if ready is same and kind in (AGAIN, NEW):
                ready()
        start = clock()
        for _ in range(batch):
            run()
        samples.append((clock() - start) / batch)
    if spans and not collected:
        start = clock()
        whole.restore()
        led += clock() - start
    return Taken(samples, led, batch, bool(collected))


class _Contents:
    """The tensors of a request as they were when it began."""

    def __init__(self, spans: Sequence[tuple[int, int, int]], memory: int, clock: Callable[[], float]) -> None:
        self.spans, self.memory, self.clock = spans, memory, clock
        self.kept = [ctypes.string_at(memory + offset, size) for offset, size, _ in spans]
        self.turn, self.took = 0, LEAST_PAUSE_S

    def before(self, kind: int, turn: int) -> None:
        """A Step of the native sampler."""
        start = self.clock()
        if kind == PAUSE:
            while self.clock() - start < self.took:
                pass
        elif kind != UNTOUCHED:
            self.turn = turn if kind == NEW else self.turn
            self._put(kind == NEW)
            self.took = self.clock() - start

    def restore(self) -> None:
        """The inputs as they were."""
        self.turn = 0
        self._put(False)

    def _put(self, other: bool) -> None:
        for (offset, size, grain), was in zip(self.spans, self.kept, strict=True):
            at = self.memory + offset
            if not grain:
                now = ctypes.string_at(at, size)
                ctypes.memmove(at, was if other else now, size)
                continue
            ahead = self.turn % (size // grain) * grain
            ctypes.memmove(at, was[size - ahead :] + was[: size - ahead], size)


def _compiled() -> Path:
    compiler = os.environ.get("CXX", "").split(" ")[0] or "g++"
    if shutil.which(compiler) is None:
        raise OSError(f"no {compiler}")
    text = SOURCE.read_text(encoding="utf-8")
    version = subprocess.run([compiler, "--version"], capture_output=True, text=True, check=True).stdout.split("\n")[0]

    def make(path: Path) -> Mapping[str, str]:
        subprocess.run([compiler, *FLAGS, str(SOURCE), "-o", str(path)], capture_output=True, check=True)
        return {"implementation": SOURCE.name}

    key = cache.key_of({"source": text, "flags": " ".join(FLAGS), "compiler": version})
    return cache.obtain(cache.cache_root() / "native", key, "sampler.so", make).path
