"""What an implementation's source compiles to at one call, without a GPU: the code of two sources can be compared, to
the first instruction.
"""

from __future__ import annotations

import itertools
import json
import re
import subprocess
import tempfile
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from opforge.backends import backend, cache, native
from opforge.backends.cpp import Cpp
from opforge.backends.cuda import Cuda
from opforge.backends.object_code import Unit, digest, host_units, kernels_in
from opforge.backends.program_hash import host_text
from opforge.backends.shared_code import source_sha256
from opforge.core.definition.implementation import Config, Implementation
from opforge.core.language.errors import OpforgeError
from opforge.inspect.offline import DEVICE_TYPES, ask_child
from opforge.inspect.tools import extract_cubins, tool
from opforge.machine.versions import versions
from opforge.registry import Registry
from opforge.walls import tool as walls

COMPARED = ("cpp", "cuda", "triton")
"""Backends whose compiled code is compared. Of the others the program is what the compiler gets, and nothing but it."""


@dataclass(frozen=True, kw_only=True)
class CompiledCall:
    """What is compiled: an implementation's call. `target`: "sm_90a", …, or "host" for what runs on a CPU."""

    operator: str
    dtype: str
    axes: Mapping[str, Any]
    scalars: Mapping[str, Any]
    config: Config
    target: str


@dataclass(frozen=True, kw_only=True)
class Compiled:
    """What a source compiles to: the parts of it, and how to write one of them down as instructions."""

    units: tuple[Unit, ...]
    listing: Callable[[Unit], list[str]]

    @property
    def sha256(self) -> str:
        """Of all parts, whatever they are called and wherever they lie."""
        return digest(self.units)


def point_key(implementation: Implementation, point: CompiledCall) -> str:
    """Equal for calls that compile to one code of this implementation: of C++ a call's shape and dtype have no part in
    it.
    """
    call = (point.dtype, dict(point.axes), dict(point.scalars)) if implementation.backend == "triton" else ()
    return repr((implementation.backend, point.config.values, point.target, call))


def compiled(registry: Registry, implementation: Implementation, point: CompiledCall) -> Compiled:
    """What `implementation` (of today's registry, or with the source of another revision) compiles to. Kept in the
    cache of compiled files.

    Raises OpforgeError with the compiler's words where it refuses the source, EnvironmentLacks where a compiler is
    missing.
    """
    tools = {name: value for name, value in versions().items() if name in ("nvcc", "g++", "triton", "apache-tvm-ffi")}
    key = cache.key_of(
        {
            "source": source_sha256(implementation.source),
            "point": point_key(implementation, point),
            "flags": repr(implementation.flags),
            "tools": repr(tools),
        }
    )
    if implementation.backend == "triton":
        entry = cache.obtain(
            cache.cache_root() / "codes",
            key,
            "code.zip",
            lambda path: _zip_of_triton(registry, implementation, point, path),
        )
        return _of_triton(implementation, entry.path)
    entry = cache.obtain(cache.cache_root() / "codes", key, "code.o", lambda path: _object(implementation, point, path))
    return _of_object(entry.path)


# --------------------------------------------------------------------------- C++ and CUDA


def _object(implementation: Implementation, point: CompiledCall, path: Path) -> Mapping[str, str]:
    on_gpu = Cuda().device_toolchain(point.target) if point.target != "host" else Cuda().toolchain("cpu")
    toolchain = Cpp().toolchain() if implementation.backend == "cpp" else on_gpu
    _, took = native.compile_with(native.object_command(implementation, point.config, toolchain, path))
    return {"implementation": f"{implementation.operator}/{implementation.name}", "seconds": f"{took:.1f}"}


def _of_object(path: Path) -> Compiled:
    with tempfile.TemporaryDirectory(prefix="opforge-code-") as folder:
        data = path.read_bytes()
        if b".nv_fatbin" in data:
            extract_cubins(path, Path(folder))
        cubins = [cubin.read_bytes() for cubin in sorted(Path(folder).glob("*.cubin"))]
    try:
        units = host_units(data, cubins)
    except ValueError as error:
        raise OpforgeError(f"{path} cannot be read: {error}") from error
    kernels = set(kernels_in(cubins))

    def listing(unit: Unit) -> list[str]:
        name = unit.section.removeprefix(".text.")
        if name in kernels:
            return _sass(path, name)
        disassembly = walls.run(
            ["objdump", "-dr", "--no-show-raw-insn", "-j", unit.section, path], readable=[path]
        ).stdout
        return [
            re.sub(r"^\s*[0-9a-f]+:\s*", "", line)
            for line in disassembly.splitlines()
            if re.match(r"\s+[0-9a-f]+:", line)
        ]

    return Compiled(units=units, listing=listing)


def _sass(path: Path, name: str) -> list[str]:
    """The instructions of a kernel, without addresses and encodings."""
    disassembly = walls.run([tool("cuobjdump"), "-sass", "-fun", name, path], readable=[path]).stdout
    return [
        instruction[1] for instruction in re.finditer(r"^\s*/\*[0-9a-f]{4,}\*/\s+(.*?);", disassembly, re.MULTILINE)
    ]


# --------------------------------------------------------------------------- Triton


def _zip_of_triton(
    registry: Registry, implementation: Implementation, point: CompiledCall, path: Path
) -> Mapping[str, str]:
    with tempfile.TemporaryDirectory(prefix="opforge-code-") as folder:
        request: dict[str, Any] = {
            "homes": [str(home.path) for home in registry.homes],
            "operator": point.operator,
            "implementation": implementation.name,
            "source": str(implementation.source),
            "target": point.target,
            "dtype": point.dtype,
            "axes": dict(point.axes),
            "scalars": dict(point.scalars),
            "config": list(point.config.values),
            "device": DEVICE_TYPES.get(point.target[:2], "cpu"),
            "folder": folder,
        }
        artefacts = ask_child(request, backend(implementation.backend).environment(request["device"]))
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as kept:
            for number, artefact in enumerate(artefacts):
                kept.write(artefact["path"], f"{number}.{artefact['kind']}")
                kept.writestr(f"{number}.json", json.dumps([artefact["threads"], artefact["facts"]]))
    return {
        "implementation": f"{implementation.operator}/{implementation.name}",
        "seconds": f"{sum(item['seconds'] for item in artefacts):.1f}",
    }


def _of_triton(implementation: Implementation, path: Path) -> Compiled:
    """Each launch: its kernel, grid, threads and shared memory; and the function of the host that chooses them."""
    units = [Unit("the host's code", host_text(implementation.source).encode())]
    with zipfile.ZipFile(path) as kept:
        for name in sorted(kept.namelist()):
            content = kept.read(name)
            if name.endswith(".cubin"):
                units += [
                    Unit(f"{name}:{unit.section}", unit.content)
                    for parts in kernels_in([content]).values()
                    for unit in parts
                ]
            else:
                units.append(Unit("the launch (threads, shared memory, grid)", content))

    def listing(unit: Unit) -> list[str]:
        name, _, section = unit.section.partition(":")
        if not section.startswith(".text."):
            return unit.content.decode(errors="replace").splitlines() if not section else []
        with tempfile.TemporaryDirectory(prefix="opforge-code-") as folder, zipfile.ZipFile(path) as kept:
            return _sass(Path(kept.extract(name, folder)), section.removeprefix(".text."))

    return Compiled(units=tuple(units), listing=listing)


# --------------------------------------------------------------------------- the difference


def first_difference(one: Compiled, other: Compiled) -> str:
    """The first instruction in which two codes differ, in words; "" where they are one."""
    if one.sha256 == other.sha256:
        return ""
    for first, second in itertools.zip_longest(one.units, other.units):
        if first is None or second is None:
            return f"one has a part more: {_named((first or second).section)}"
        if first.content != second.content:
            return f"in {_named(second.section)}: {_first_line(one.listing(first), other.listing(second))}"
    return "the codes differ"


def _first_line(one: Sequence[str], other: Sequence[str]) -> str:
    for number, (first, second) in enumerate(itertools.zip_longest(one, other), start=1):
        if first != second:
            return f"instruction {number} was `{_short(first)}` and is `{_short(second)}`"
    return "the instructions are one; registers, barriers or constants differ"


def _short(line: str | None) -> str:
    return "nothing" if line is None else re.sub(r"\s+", " ", line)[:100]


def _named(section: str) -> str:
    name = section.rpartition(":")[2].removeprefix(".text.").removeprefix("unlikely.")
    said = (
        subprocess.run(["c++filt", "-p", name], capture_output=True, text=True, check=False).stdout.strip()
        if name.startswith("_Z")
        else name
    )
    return re.sub(r"\(anonymous namespace\)::|_GLOBAL__N_\w+::", "", said or name)[:80]
