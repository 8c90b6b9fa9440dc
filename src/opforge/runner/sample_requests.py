"""What a request for samples asks, and how it reaches the sampler: through a pipe, so that nothing in a worker's Python
says how a call will be
used, for a measurement or for a judgement, before it is over."""

from __future__ import annotations

import ctypes
import os
import shutil
import struct
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from time import perf_counter as _perf_counter
from typing import NamedTuple

from opforge.backends import cache
from opforge.core.errors import OpforgeError
from opforge.runner.clocks import RunFunction
from opforge.runner.messages import OTHER

SOURCE = Path(__file__).resolve().parents[1] / "device" / "include" / "opforge" / "abi" / "sampler.cpp"
FLAGS = ("-std=c++17", "-O2", "-fPIC", "-shared", "-fvisibility=hidden")
FORM = struct.Struct("=6q")
PLACE = struct.Struct("=2q8s8s")
MOST_SAMPLES = 1 << 12


@dataclass(frozen=True, kw_only=True)
class SampleRequest:
    """One request for samples by the host's clock.

    written    OTHER content than that of the last call: what is made of the inputs beforehand is made again; SAME: as
               much is done where nothing has changed (runner.messages)
    lead       calls that are not timed, before the samples
    batch      calls in a sample
    count      samples; 0 for a request that only warms
    collected  whether what the last call left is put into the arena
    places     elements of inputs that are written before each sample: their offset in the arena, what stands there in
               one content, and in another (equally many bytes, at most 8)
    contents   of each sample, which of the two it is taken on, where there are places
    """

    written: int = 0
    lead: int = 0
    batch: int = 1
    count: int = 1
    collected: bool = False
    places: tuple[tuple[int, bytes, bytes], ...] = ()
    contents: bytes = b""

    def sent(self) -> int:
        """A descriptor from which it can be read once."""
        theirs, ours = os.pipe()
        try:
            shape = FORM.pack(self.written, self.lead, self.batch, self.count, self.collected, len(self.places))
            places = b"".join(PLACE.pack(offset, len(one), one, other) for offset, one, other in self.places)
            os.write(ours, shape + places + self.contents)
        finally:
            os.close(ours)
        return theirs


class Taken(NamedTuple):
    """Seconds per call, the seconds of the lead, the calls in a sample, and whether the last result was asked for."""

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
    written, lead, batch, count, collected, number = FORM.unpack(os.read(descriptor, FORM.size))
    places = [PLACE.unpack(os.read(descriptor, PLACE.size)) for _ in range(number)]
    contents = os.read(descriptor, count) if places else b""
    if written:
        (ready if written == OTHER else same)()
    start = clock()
    for _ in range(lead):
        run()
    led = clock() - start
    samples = []
    for at in range(count):
        for offset, width, *values in places:
            ctypes.memmove(memory + offset, values[contents[at]], width)
        if places and ready is same:
            # what a forward pass keeps of the inputs is made again wherever they were written
            ready()
        start = clock()
        for _ in range(batch):
            run()
        samples.append((clock() - start) / batch)
    return Taken(samples, led, batch, bool(collected))


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
