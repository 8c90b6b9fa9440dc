"""What the host's compiler made of a C++ kernel, counted in its instructions: vector or scalar arithmetic, divisions,
registers kept on the stack.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from opforge.walls import tool

LIMIT_S = 60.0
_LINE = re.compile(r"^\s*[0-9a-f]+:\s+(?P<name>[a-z][a-z0-9]*)\s*(?P<rest>.*)$")
_FLOAT = re.compile(r"^v?(add|sub|mul|div|sqrt|max|min|fn?m(add|sub)(132|213|231))(?P<kind>[ps][sd])$")
_STACK = re.compile(r"\(%r[sb]p")
_VECTOR = re.compile(r"%[yz]mm\d")


@dataclass(frozen=True, kw_only=True)
class HostCode:
    """Instructions in a library (not executed ones), of all the dtypes that it was compiled for.

    packed, scalar   floating-point arithmetic on vectors, and on single numbers
    divisions        of whole numbers
    on_stack         vector registers written to or read from the stack: spills, or arrays
    streamed         stores that pass the caches by
    parallel         whether OpenMP threads are started
    """

    packed: int
    scalar: int
    divisions: int
    on_stack: int
    streamed: int
    parallel: bool

    @property
    def vector_share(self) -> float | None:
        """Packed arithmetic over all of it; None where there is none."""
        every = self.packed + self.scalar
        return self.packed / every if every else None


def host_code(library: Path) -> HostCode | str:
    """What a shared library holds, or why it could not be read."""
    program = shutil.which("objdump")
    if program is None:
        return "objdump is not on PATH: apt-get install binutils"
    try:
        done = tool.run([program, "-d", "--no-show-raw-insn", library], readable=[library], wall_s=LIMIT_S, check=True)
    except (OSError, subprocess.SubprocessError, tool.TookTooLong) as error:
        return f"objdump could not read it: {error}"
    return counted(done.stdout.splitlines())


def counted(lines: Iterable[str]) -> HostCode:
    """The HostCode of a disassembly.

    >>> counted(["  10:  vmulps %zmm1,%zmm2,%zmm3", "  16:  idiv   %rcx", "  19:  vmulss %xmm1,%xmm2,%xmm3"]).divisions
    1
    """
    found: Counter[str] = Counter()
    for line in lines:
        if (match := _LINE.match(line)) is None:
            continue
        name, rest = match["name"], match["rest"]
        if (arithmetic := _FLOAT.match(name)) is not None:
            found["packed" if arithmetic["kind"].startswith("p") else "scalar"] += 1
        elif name in ("idiv", "div", "idivq", "divq", "idivl", "divl"):
            found["divisions"] += 1
        elif name.startswith(("vmovnt", "movnt")):
            found["streamed"] += 1
        elif name.startswith(("vmova", "vmovu")) and _STACK.search(rest) and _VECTOR.search(rest):
            found["on_stack"] += 1
        elif "GOMP_parallel" in rest or "__kmpc_fork_call" in rest:
            found["parallel"] += 1
    return HostCode(
        packed=found["packed"],
        scalar=found["scalar"],
        divisions=found["divisions"],
        on_stack=found["on_stack"],
        streamed=found["streamed"],
        parallel=found["parallel"] > 0,
    )
