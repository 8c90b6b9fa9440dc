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
from dataclasses import astuple, dataclass
from functools import lru_cache
from pathlib import Path
from time import perf_counter as _perf_counter

from opforge.backends import cache
from opforge.core.errors import OpforgeError
from opforge.runner.clocks import RunFunction
from opforge.runner.messages import OTHER

SOURCE = Path(__file__).resolve().parents[1] / "device" / "include" / "opforge" / "abi" / "sampler.cpp"
FLAGS = ("-std=c++17", "-O2", "-fPIC", "-shared", "-fvisibility=hidden")
FORM = struct.Struct("=4q")
MOST_SAMPLES = 1 << 12


@dataclass(frozen=True, kw_only=True)
class SampleRequest:
    """One request for samples by the host's clock.

    written    OTHER content than that of the last call: what is made of the inputs beforehand is made again; SAME: as
               much is done where nothing has changed (runner.messages)
    lead       calls that are not timed, before the samples
    batch      calls in a sample
    count      samples; 0 for a request that only warms
    """

    written: int = 0
    lead: int = 0
    batch: int = 1
    count: int = 1

    def sent(self) -> int:
        """A descriptor from which it can be read once."""
        theirs, ours = os.pipe()
        try:
            os.write(ours, FORM.pack(*astuple(self)))
        finally:
            os.close(ours)
        return theirs


@lru_cache(maxsize=1)
def sampler() -> Callable[[RunFunction, RunFunction, RunFunction, int], tuple[list[float], float, int]]:
    """The native sampler, compiled once and kept; the one in Python where there is no compiler. Both take the run, what
    makes it ready, what does as much where nothing has changed, and the
    descriptor of a SampleRequest. They give seconds per call, the seconds of the lead, and the calls in a sample."""
    try:
        library = ctypes.PyDLL(str(_compiled()))
    except (OSError, OpforgeError, subprocess.SubprocessError):
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
    ]

    def native(
        run: RunFunction, ready: RunFunction, same: RunFunction, descriptor: int
    ) -> tuple[list[float], float, int]:
        seconds, batch = (ctypes.c_double * MOST_SAMPLES)(), ctypes.c_int64(0)
        # what a call raises comes out of here as it is
        count = function(run, ready, same, descriptor, seconds, MOST_SAMPLES, ctypes.byref(batch))
        if count < 0:
            raise ValueError("the request for samples cannot be read")
        return list(seconds[:count]), seconds[count], batch.value

    return native


def in_python(
    run: RunFunction,
    ready: RunFunction,
    same: RunFunction,
    descriptor: int,
    clock: Callable[[], float] = _perf_counter,
) -> tuple[list[float], float, int]:
    """As the native sampler. A kernel in Python can see it in the frames above its own."""
    written, lead, batch, count = FORM.unpack(os.read(descriptor, FORM.size))
    if written:
        (ready if written == OTHER else same)()
    start = clock()
    for _ in range(lead):
        run()
    led = clock() - start
    samples = []
    for _ in range(count):
        start = clock()
        for _ in range(batch):
            run()
        samples.append((clock() - start) / batch)
    return samples, led, batch


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
