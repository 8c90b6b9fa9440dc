"""What a compiled kernel asks other libraries for. A kernel that computes needs mathematics, memory and threads; who
asks for anything else, looks other code up by its name, or calls Python, has another library compute."""

from __future__ import annotations

import re
import struct
from functools import lru_cache
from pathlib import Path

from opforge.backends import native
from opforge.backends.cpp import Cpp
from opforge.core.definition.implementation import Config, Implementation

_MATHEMATICS = r"""
a?(sin|cos|tan)h? atan2 sinpi cospi tanpi sincos exp exp2 exp10 expm1 log log2 log10 log1p pow pow10 powi sqrt cbrt
hypot erfc? tgamma lgamma(_r)? ceil floor trunc l?l?round roundeven l?l?rint nearbyint fma fmod remainder remquo fmax
fmin fabs fdim ldexp frexp scalbl?n ilogb logb modf nextafter nexttoward copysign nan [jy][01n]
"""
_MEMORY_AND_WORDS = r"""
malloc calloc realloc free aligned_alloc posix_memalign memalign malloc_usable_size mmap munmap madvise
mem(cpy|move|set|cmp|r?chr|mem|pcpy) str(len|nlen|n?cmp|n?cpy|n?cat|r?chr|str|error|to(d|f|ld|ll?|ull?))
__(mem|str|stp)\w+_chk ato(i|ll?|f) is(alpha|digit|alnum|space|upper|lower|xdigit|(nan|inf|finite)[fl]?)
to(upper|lower) qsort bsearch l?l?abs l?l?div s?rand rand_r s?random [delm]rand48 srand48
v?f?printf v?sn?printf __v?f?s?n?printf_chk f?puts f?putc putchar fwrite fflush stdout stderr perror abort
"""
_CLOCK_AND_THREADS = r"""
clock clock_gettime clock_getres time gettimeofday nanosleep usleep sched_yield sched_getcpu sched_getaffinity
__sched_cpu(count|alloc|free) sysconf get_nprocs(_conf)? getpagesize sem_(init|destroy|post|wait|trywait)
pthread_(?!atfork|kill|sigmask|sigqueue)\w+ GOMP_\w+ omp_\w+ __kmpc_\w+
"""
_BY_COMPILERS = r"""
__gmon_start__ _ITM_\w+ __cxa_\w+ __gxx_\w+ _Unwind_\w+ __tls_get_addr __dso_handle __dynamic_cast __cpu_\w+
__assert_fail __errno_location __stack_chk_fail __\w+_finite __fpclassify[fl]? __signbit[fl]? __is(nan|inf|finite)[fl]?
fe(get|set)(round|env) feholdexcept fe(clear|raise|test)except feupdateenv
__(extend|trunc|float|fix|fixuns|floatun)\w+f\d?\w*
__popcount[sdt]i2
__(add|sub|mul|u?div|u?mod|u?divmod|neg|eq|ne|lt|le|gt|ge|unord|u?cmp|pow|clz|ctz|ffs|parity|bswap|[al]sh)[a-z]+\d
_Z(na|nw|da|dl)\w+ _ZGV[a-zA-Z]\w+_\w+ _ZT[IS]P?K?[a-z] _Z(N|T[ISV]N)?(10__cxxabiv1|9__gnu_cxx)\w+
_Z(N|NK|T[ISTVC]|T[ISTVC]N|GVN|GVNK)?S[tabsiod]\w+
"""
_BY_TVM_FFI = r"TVMFFI(?!Function|EnvMod|EnvGetGlobal|Py)\w+"
"""Tensors, errors, strings, the current stream."""


def _one_of(patterns: str, ending: str = "") -> str:
    return "|".join(f"(?:{pattern}){ending}" for pattern in patterns.split())


_OTHERS = _one_of(f"{_MEMORY_AND_WORDS} {_CLOCK_AND_THREADS} {_BY_COMPILERS} {_BY_TVM_FFI}")
OWN = re.compile(f"{_one_of(_MATHEMATICS, '[fl]?(?:16|32|64|128)?x?')}|{_OTHERS}")
"""What a kernel in C++ may ask others for: mathematics, memory, words, the clock, threads, what its compiler puts in.
Which library answers another name, and what it computes, nothing says: a BLAS has its products under a dozen."""
NOT_OWN = re.compile(r"_Z\w*(2at|3c10|5torch)\w*|_Z\w*(filebuf|[io]?fstream|10filesystem|13random_device)\w*")
"""Of the standard's names those that speak of PyTorch's types, files, or numbers that nobody can draw again."""
UNDEFINED, DYNAMIC_SYMBOLS = 0, 11


def foreign_code(implementation: Implementation, config: Config | None) -> tuple[str, ...]:
    """What the library of a C++ implementation asks others for and a kernel has no use for, as sentences; () for other
    backends, whose kernels are watched
    when they run."""
    if implementation.backend != "cpp":
        return ()
    path = native.library(implementation, implementation.default if config is None else config, Cpp().toolchain()).path
    return tuple(f"its library asks for {name}" for name in undefined_symbols(path) if is_foreign(name))


def is_foreign(name: str) -> bool:
    """Whether a symbol is one that a kernel which computes by itself has no use for.

    >>> is_foreign("expf"), is_foreign("sgemm_64"), is_foreign("dl_iterate_phdr")
    (False, True, True)
    """
    return not OWN.fullmatch(name) or bool(NOT_OWN.fullmatch(name))


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
