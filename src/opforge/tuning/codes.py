"""What the compiler makes of each point, in hashes, compiled ahead of the measuring and in parallel.

Two points with the same machine code are one point: the second is not measured. Native kernels are compiled into the
cache that workers load from; Triton and TileLang compile in processes of their own (a launcher is a guest's code, and a
compiler may abort), into the same folder that workers compile into, so that nothing is compiled twice.
"""

from __future__ import annotations

import contextlib
import json
import os
import struct
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from opforge.backends import backend, cache, native
from opforge.backends.cpp import Cpp
from opforge.backends.cuda import Cuda
from opforge.backends.shared_code import source_sha256
from opforge.core.definition.implementation import Config, Implementation
from opforge.core.definition.operator import ScalarValue
from opforge.core.definition.shapes import Axes
from opforge.core.language.errors import EnvironmentLacks, OpforgeError
from opforge.inspect.resources import parse_resource_usage
from opforge.inspect.tools import extract_cubins, tool
from opforge.registry import Registry
from opforge.tuning.code_prior import CodeUse
from opforge.tuning.compile_queue import NOW, Compilers
from opforge.walls import places, tool as walls
from opforge.walls.environment import for_toolchains

LIMIT_S = 300.0
TOGETHER = 8
"""Points that one compiling process takes at most: importing a toolchain costs seconds, and a crash loses those that
follow.
"""


@dataclass(frozen=True, kw_only=True)
class CompiledCode:
    """What the compiler makes of a point: SHA-256 of all that decides what is executed, and the stack of its GPU
    kernels, a thread's, in
    bytes (0: nothing is spilled; of the kernel with the most; None: not known). use: the rest that its kernels use;
    None where a launch decides on it."""

    sha256: str
    stack_bytes: int | None = None
    use: CodeUse | None = None


@dataclass(frozen=True, kw_only=True)
class CompileRefused:
    """What the compiler said of a point that it does not take: the same command would say it again when the point is
    bound.
    """

    reason: str


class _Promise:
    """The CompiledCode of a point, to be had once it is known."""

    def __init__(self) -> None:
        self.known = threading.Event()
        self.code: CompiledCode | CompileRefused | None = None
        self.error: BaseException | None = None
        self.urgent = False
        self._begun = threading.Lock()

    def begin(self) -> bool:
        """Whether whoever asks is to compile it: the first who does."""
        return self._begun.acquire(blocking=False)

    @property
    def begun(self) -> bool:
        return self._begun.locked()

    def keep(self, code: CompiledCode | CompileRefused | None, error: BaseException | None = None) -> None:
        """The first word counts. `error` is raised where the code is asked for."""
        if not self.known.is_set():
            self.code, self.error = code, error
            self.known.set()


class Codes:
    """The code of the points of one implementation on one workload. `of` waits; None means that it cannot be told, and
    the point is tried. together: points of one compiling process at most.
    """

    def __init__(
        self,
        registry: Registry,
        implementation: Implementation,
        axes: Axes,
        dtype: str,
        scalars: Mapping[str, ScalarValue],
        device: str,
        target: str,
        compilers: Compilers,
        *,
        together: int = TOGETHER,
    ) -> None:
        self.registry, self.implementation, self.together = registry, implementation, together
        self.axes, self.dtype, self.scalars, self.device, self.target = axes, dtype, scalars, device, target
        self.compilers = compilers
        self.promised: dict[Config, _Promise] = {}

    def ahead(self, configs: Sequence[Config], urgency: int) -> None:
        """Begin compiling those that are not known yet, in this order; those that wait behind others come forward."""
        new = {config: self.promised.get(config) or _Promise() for config in configs}
        new = {
            config: promise
            for config, promise in new.items()
            if not promise.begun and not promise.urgent and (urgency == NOW or config not in self.promised)
        }
        for promise in new.values():
            promise.urgent = urgency == NOW
        self.promised |= new
        # every compiler gets some of them before one gets many
        size = (
            1
            if self.implementation.backend in ("cpp", "cuda")
            else max(1, min(self.together, len(new) // self.compilers.jobs))
        )
        waiting = list(new.items())
        for start in range(0, len(waiting), size):
            self.compilers.submit(self._work(dict(waiting[start : start + size])), urgency)

    def known(self, config: Config) -> bool:
        """Whether `of` would answer at once."""
        return config in self.promised and self.promised[config].known.is_set()

    def of(self, config: Config, stop: Callable[[], bool] = lambda: False) -> CompiledCode | CompileRefused | None:
        """The code of a point, compiled now if it was not begun. None too where `stop` says so before it is known.
        Raises what compiling ahead raised, unless a tool is missing or the process that compiles ended: then nothing is
        known, and whoever binds the point is told.
        """
        self.ahead([config], NOW)
        promise = self.promised[config]
        while not promise.known.wait(0.1):
            if stop():
                return None
        if promise.error is not None:
            raise promise.error
        return promise.code

    def _work(self, group: dict[Config, _Promise]) -> Callable[[], None]:
        def work() -> None:
            mine = {config: promise for config, promise in group.items() if promise.begin()}
            error: BaseException | None = None
            try:
                if mine:
                    self._compile(mine)
            except (EnvironmentLacks, subprocess.SubprocessError):
                pass
            # of another thread than the one that asks: it is raised there
            except BaseException as raised:  # noqa: BLE001
                error = raised
            for promise in mine.values():
                promise.keep(None, error)

        return work

    def _compile(self, group: dict[Config, _Promise]) -> None:
        match self.implementation.backend:
            case "cpp" | "cuda" as kind:
                toolchain = Cpp().toolchain() if kind == "cpp" else Cuda().toolchain(self.device)
                for config, promise in group.items():
                    try:
                        library = native.library(self.implementation, config, toolchain).path
                    except native.CompilationFailed as error:
                        promise.keep(CompileRefused(reason=str(error)))
                        continue
                    promise.keep(
                        CompiledCode(sha256=cache.sha256_of(library)) if kind == "cpp" else code_of_library(library)
                    )
            case "triton" | "tilelang":
                self._ask(group)

    def _ask(self, group: dict[Config, _Promise]) -> None:
        """Of a compiling process, which says what it knows line by line; what it did not live to say is missing."""
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
        folder = cache.jit_folder(homes, self.implementation.backend, source_sha256(self.implementation.source))
        folder.mkdir(parents=True, exist_ok=True)
        # under the interpreter there is nothing to compile: the child must be a compiler whatever this process is
        variables = {
            **backend(self.implementation.backend).environment(self.device),
            "TRITON_INTERPRET": "0",
            "OPFORGE_PRELOAD": "",
        }
        variables |= {f"{name}_CACHE_DIR": str(folder / name.lower()) for name in ("TRITON", "TILELANG")}
        path = os.pathsep.join(
            filter(None, (str(Path(__file__).resolve().parents[2]), os.environ.get("PYTHONPATH", "")))
        )
        promises = list(group.values())
        with tempfile.TemporaryDirectory(prefix="opforge-tune-") as scratch:
            asked = Path(scratch, "request.json")
            asked.write_text(json.dumps(request), encoding="utf-8")
            child = subprocess.Popen(
                walls.behind_walls(
                    [sys.executable, "-P", "-m", "opforge.tuning.point_compiler", str(asked)],
                    Path(scratch),
                    writable=[folder],
                    readable=[*places.of_python(), *map(Path, homes)],
                    memory_bytes=0,
                    processor_s=int(LIMIT_S),
                ),
                env={
                    **for_toolchains(os.environ.items()),
                    **{name: value for name, value in os.environ.items() if name.startswith("OPFORGE_")},
                    **variables,
                    "PYTHONPATH": path,
                    "HOME": scratch,
                    "TMPDIR": scratch,
                    "OPFORGE_CACHE": str(cache.cache_root()),
                },
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                # Ctrl-C is for whoever tunes: what is being compiled is finished
                start_new_session=True,
            )
            self.compilers.children.add(child.pid)
            late = threading.Timer(LIMIT_S, child.kill)
            late.start()
            try:
                assert child.stdout is not None
                for line in child.stdout:
                    if line.startswith("code "):
                        _, place, sha, stack, use = line.split(maxsplit=4)
                        promises[int(place)].keep(
                            CompiledCode(
                                sha256=sha,
                                stack_bytes=json.loads(stack),
                                use=CodeUse(**said) if (said := json.loads(use)) else None,
                            )
                        )
            finally:
                late.cancel()
                child.kill()
                child.wait()
                self.compilers.children.discard(child.pid)
                if child.stdout is not None:
                    child.stdout.close()


def code_of_library(path: Path) -> CompiledCode:
    """Of a native library. One without GPU code (the emulator's): its bytes. nvcc writes names made from the command
    line into a library, so of one with GPU code the contents of what is executed: the host's code, which decides on
    grids and shared memory, and the kernels'.
    """
    with tempfile.TemporaryDirectory(prefix="opforge-code-") as folder:
        extract_cubins(path, Path(folder))
        cubins = sorted(Path(folder).glob("*.cubin"))
        if not cubins:
            return CompiledCode(sha256=cache.sha256_of(path))
        digest = sha256(b"".join(content for name, content in sections(path.read_bytes()) if name == ".text"))
        for cubin in cubins:
            for name, content in sections(cubin.read_bytes()):
                # .nv.info holds the launch bounds, with the numbers of symbols; constants hold what the code reads
                if name.startswith((".text.", ".nv.constant", ".nv.shared", ".nv.info")):
                    digest.update(b"%d " % len(content) + content)
        return CompiledCode(
            sha256=digest.hexdigest(), stack_bytes=max((stack_of(cubin) or 0 for cubin in cubins), default=None)
        )


def stack_of(cubin: Path) -> int | None:
    """Bytes of stack that a thread of the kernel with the most has: what is spilled, and arrays that are indexed. None
    where no tool can tell.
    """
    return most_of(cubin).get("stack_bytes")


def most_of(cubin: Path) -> dict[str, int]:
    """What the kernels of a file use, of each resource the most: "registers" and "stack_bytes" of a thread, and others.
    Nothing where no tool can tell.
    """
    with contextlib.suppress(OpforgeError, OSError, subprocess.SubprocessError):
        said = walls.run([tool("cuobjdump"), "--dump-resource-usage", cubin], readable=[cubin], check=True).stdout
        uses = list(parse_resource_usage(said).values())
        names = {"stack_bytes", *(name for use in uses for name in use)} if uses else set()
        return {name: max(use.get(name, 0) for use in uses) for name in names}
    return {}


def sections(elf: bytes) -> Iterator[tuple[str, bytes]]:
    """Name and content of each section of a 64-bit little-endian ELF file, in its order; of one that takes no room in
    the file, its size.
    """
    (table,) = struct.unpack_from("<Q", elf, 0x28)
    size, count, names = struct.unpack_from("<HHH", elf, 0x3A)
    headers = [struct.unpack_from("<IIQQQQ", elf, table + place * size) for place in range(count)]
    strings = headers[names][4]
    for name, kind, _, _, offset, length in headers:
        start = strings + name
        nothing_in_the_file = 8
        yield (
            elf[start : elf.index(b"\0", start)].decode(),
            str(length).encode() if kind == nothing_in_the_file else elf[offset : offset + length],
        )
