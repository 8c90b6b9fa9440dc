"""What a compiled kernel asks other libraries for. A kernel that computes needs mathematics, memory and threads; who
looks other code up by its name, or
calls Python, has another library compute."""

from __future__ import annotations

import re
import struct
from functools import lru_cache
from pathlib import Path

from opforge.backends import native
from opforge.backends.cpp import Cpp
from opforge.core.definition.implementation import Config, Implementation

FOREIGN = re.compile(
    r"dlv?sym|dlm?open|dladdr1?|_r_debug|_?Py[A-Z_]\w*|(cblas_|mkl_|openblas_|LAPACKE?_|cublas|cudnn|cusparse"
    r"|cusolver)\w*|[sdcz](gemm|gemv|dot|axpy|trsm|syrk)_?"
    r"|_Z\w*(2at|3c10|5torch)\w*|TVMFFIFunctionGetGlobal\w*|system|popen|v?fork|posix_spawnp?|exec[lv]\w*"
    r"|process_vm_\w+|ptrace"
)
UNDEFINED, DYNAMIC_SYMBOLS = 0, 11


def foreign_code(implementation: Implementation, config: Config | None) -> tuple[str, ...]:
    """What the library of a C++ implementation asks others for and a kernel has no use for, as sentences; () for other
    backends, whose kernels are watched
    when they run."""
    if implementation.backend != "cpp":
        return ()
    path = native.library(implementation, implementation.default if config is None else config, Cpp().toolchain()).path
    foreign = [name for name in undefined_symbols(path) if FOREIGN.fullmatch(name)]
    return tuple(f"its library asks for {name}" for name in foreign)


@lru_cache(maxsize=512)
def undefined_symbols(path: Path) -> tuple[str, ...]:
    """The dynamic symbols that a 64-bit little-endian ELF library takes from others; () for a file of another kind."""
    elf = path.read_bytes()
    if elf[:6] != b"\x7fELF\x02\x01":
        return ()
    (table,) = struct.unpack_from("<Q", elf, 0x28)
    size, count = struct.unpack_from("<HH", elf, 0x3A)
    headers = [struct.unpack_from("<IIQQQQIIQQ", elf, table + place * size) for place in range(count)]
    undefined: set[str] = set()
    for _, kind, _, _, offset, length, link, _, _, width in headers:
        if kind != DYNAMIC_SYMBOLS:
            continue
        names = headers[link][4]
        for place in range(offset, offset + length, width):
            name, _, _, section = struct.unpack_from("<IBBH", elf, place)
            start = names + name
            if section == UNDEFINED and name:
                undefined.add(elf[start : elf.index(b"\0", start)].decode(errors="replace"))
    return tuple(sorted(undefined))
