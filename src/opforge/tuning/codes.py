"""What the compiler makes of each point, in hashes, compiled ahead of the measuring and in parallel.

Two points with the same machine code are one point: the second is not measured. Native kernels are compiled into the
cache that workers load from; Triton and TileLang compile in processes of their own (a launcher is a guest's code, and a
compiler may abort), into the same folder that workers compile into, so that nothing is compiled twice.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from hashlib import sha256
from pathlib import Path
from typing import Any

from opforge.backends import backend, cache, native
from opforge.backends.cpp import Cpp
from opforge.backends.cuda import Cuda
from opforge.core.errors import OpforgeError
from opforge.core.implementation import Config, Implementation
from opforge.core.operator import ScalarValue
from opforge.core.shapes import Axes
from opforge.inspect.tools import tool
from opforge.registry import Registry

LIMIT_S = 300.0
TOGETHER = 8
"""Points that one compiling process takes: importing a toolchain costs seconds, and a crash loses those that follow."""


class Codes:
    """The code of the points of one implementation on one workload. `of` waits; None means that it cannot be told."""

    def __init__(self, registry: Registry, implementation: Implementation, axes: Axes, dtype: str, scalars: Mapping[str, ScalarValue], device: str, target: str) -> None:
        self.registry, self.implementation = registry, implementation
        self.axes, self.dtype, self.scalars, self.device, self.target = axes, dtype, scalars, device, target
        self.pool = ThreadPoolExecutor(max_workers=max(1, (os.cpu_count() or 2) // 2))
        self.known: dict[Config, Future[dict[Config, str]]] = {}

    def ahead(self, configs: Sequence[Config]) -> None:
        """Begin compiling those that are not known yet, in this order."""
        new = [config for config in configs if config not in self.known]
        size = 1 if self.implementation.backend in ("cpp", "cuda") else TOGETHER
        for start in range(0, len(new), size):
            group = new[start : start + size]
            future = self.pool.submit(self._codes, group)
            self.known.update(dict.fromkeys(group, future))

    def of(self, config: Config) -> str | None:
        """SHA-256 of the code of a point, compiled now if it was not begun."""
        self.ahead([config])
        return self.known[config].result().get(config)

    def close(self) -> None:
        """Give up what has not begun; wait for what has."""
        self.pool.shutdown(wait=True, cancel_futures=True)

    def _codes(self, group: Sequence[Config]) -> dict[Config, str]:
        match self.implementation.backend:
            case "cpp":
                return {config: code for config in group if (code := self._library(config, Cpp().toolchain())) is not None}
            case "cuda":
                return {config: code for config in group if (code := self._library(config, Cuda().toolchain(self.device))) is not None}
            case "triton" | "tilelang":
                return self._asked(group)
        return {}

    def _library(self, config: Config, chain: native.Toolchain) -> str | None:
        """Of a native library: its bytes; nvcc writes names made from the command line into those, so of a GPU's the instructions."""
        try:
            path = native.library(self.implementation, config, chain).path
            if self.implementation.backend == "cuda" and self.device == "cuda":
                listing = subprocess.run([str(tool("cuobjdump")), "-sass", str(path)], capture_output=True, check=True).stdout
                return sha256(listing).hexdigest()
            return cache.sha256_of(path)
        except (OpforgeError, subprocess.CalledProcessError):
            return None  # whoever binds it compiles it again, and reports what the compiler said

    def _asked(self, group: Sequence[Config]) -> dict[Config, str]:
        """Of a group, by a compiling process; what it did not live to say is missing."""
        homes = [str(home.path) for home in self.registry.homes]
        request: dict[str, Any] = {
            "homes": homes,
            "operator": self.implementation.operator,
            "implementation": self.implementation.name,
            "axes": dict(self.axes),
            "dtype": self.dtype,
            "scalars": dict(self.scalars),
            "device": self.device,
            "target": self.target,
            "configs": [list(config.values) for config in group],
        }
        folder = cache.jit_folder(homes, self.implementation.backend)
        # under the interpreter there is nothing to compile: the child must be a compiler whatever this process is
        variables = {**backend(self.implementation.backend).environment(self.device), "TRITON_INTERPRET": "0", "OPFORGE_PRELOAD": ""}
        variables |= {f"{name}_CACHE_DIR": str(folder / name.lower()) for name in ("TRITON", "TILELANG")}
        path = os.pathsep.join(filter(None, (str(Path(__file__).resolve().parents[2]), os.environ.get("PYTHONPATH", ""))))
        with tempfile.TemporaryDirectory(prefix="opforge-tune-") as scratch:
            asked = Path(scratch, "request.json")
            asked.write_text(json.dumps(request), encoding="utf-8")
            try:
                done = subprocess.run(
                    [sys.executable, "-m", "opforge.tuning.child", str(asked)],
                    env={**os.environ, **variables, "PYTHONPATH": path},
                    capture_output=True,
                    text=True,
                    timeout=LIMIT_S,
                    check=False,
                )
                said = done.stdout
            except subprocess.TimeoutExpired as error:
                said = error.stdout.decode() if isinstance(error.stdout, bytes) else error.stdout or ""
        found: dict[Config, str] = {}
        for line in said.splitlines():
            if line.startswith("code "):
                _, place, code = line.split()
                found[group[int(place)]] = code
        return found
