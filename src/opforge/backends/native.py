"""Compiles .cpp and .cu files to shared libraries behind the TVM-FFI ABI, and loads them.

Two modes behind one call (seed 002): a library built ahead (`opforge build`, in the operator's `built/` folder) is used
when its key matches, otherwise the file is compiled on first use and kept in the user's cache. The key holds the text
of the source and of every header it includes, the flags, the compiler's version, the target and the TVM-FFI version, so
a match is exact by construction.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import math
import platform
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from opforge.backends import cache
from opforge.backends.module_loading import installed
from opforge.backends.shared_code import INCLUDE as INCLUDE, code_of, headers_of, include_of, package_of
from opforge.core.definition.compiler_options import refused, refused_definition
from opforge.core.definition.implementation import Config, Implementation
from opforge.core.definition.operator import Operator, ScalarValue
from opforge.core.language.errors import EnvironmentLacks, NotNow, OpforgeError, UsageError
from opforge.walls import tool

FFI_INSTALL = "pip install apache-tvm-ffi==0.1.12"
ENTRY = "run"
LIBRARY = "kernel.so"
SHELL = re.compile(r"[$`\\\n]")
"""What a shell expands inside of the double quotes in which nvcc puts each word."""
BINDING_FLAGS = ("-std=c++17", "-O2", "-fPIC", "-shared", "-fvisibility=hidden")
MOST_BOUND = 12
"""kMostTensors in prepared.cpp."""


SOURCES = (".cpp", ".cu", ".cc", ".c")
OWN_FAULT, KILLED = 4, 128
"""What g++ ends with when it fails itself; from which number on a status is a signal. Either is tried once more."""
CRASHED = {KILLED + one: one.name for one in (signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE)}
"""Statuses of a compiler that fell over a source by itself. Other signals come from outside, or of memory's end."""
UNREADABLE = ("Permission denied", "Error: file not found", "Error: can't open")
NOT_COVERED = (
    "A compiler reads its toolchain, opforge's headers and those that the kernel's hash covers. Write "
    '#include "name.h" on a line of its own, with the header beside the file.'
)


class CompilationFailed(OpforgeError):
    """The compiler refused the source. The message holds the command and the end of what the compiler said."""


class CompilationTimedOut(CompilationFailed):
    """The compiler was ended at a limit of walls.tool, which the message names; `limit_s` is it in seconds."""

    def __init__(self, message: str, limit_s: float) -> None:
        super().__init__(message)
        self.limit_s = limit_s


@dataclass(frozen=True, kw_only=True)
class Toolchain:
    """A compiler and how it is called for one kind of target."""

    compiler: str
    flags: tuple[str, ...]
    target: str


@lru_cache(maxsize=8)
def compiler_version(compiler: str) -> str:
    """The first line, and for nvcc the release line, of `compiler --version`."""
    for _ in range(2):
        done = subprocess.run([compiler, "--version"], capture_output=True, text=True, check=False)
        lines = done.stdout.splitlines()
        if done.returncode == 0 and lines:
            return next((line for line in lines if "release" in line), lines[0])
    raise NotNow(
        f"`{compiler} --version` failed twice (status {done.returncode}): {first_error(done.stderr)}. Run it by itself "
        "to see why, then this again."
    )


@lru_cache(maxsize=1)
def host_isa() -> str:
    """A name for this CPU's instruction set, because -march=native means another thing on another machine."""
    flags = ""
    if Path("/proc/cpuinfo").exists():
        flags = next(
            (line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith(("flags", "Features"))),
            "",
        )
    return f"{platform.machine()}-{hashlib.sha256(' '.join(sorted(flags.split())).encode()).hexdigest()[:8]}"


@lru_cache(maxsize=1)
def ffi_version() -> str:
    """TVM-FFI's version."""
    return importlib.metadata.version("apache-tvm-ffi")


@lru_cache(maxsize=1)
def ffi_flags() -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Include flags and link flags for TVM-FFI. Raises EnvironmentLacks when it is not installed."""
    if not installed("tvm_ffi"):
        raise EnvironmentLacks(
            f"Native kernels are called through Apache TVM-FFI, which is not installed. Install it with: {FFI_INSTALL}"
        )
    # its folders are found without importing it: compiling needs no runtime
    spec = importlib.util.find_spec("tvm_ffi")
    assert spec is not None and spec.origin is not None
    root = Path(spec.origin).parent
    includes = [path for path in (root / "include", root / "3rdparty" / "dlpack" / "include") if path.is_dir()]
    return tuple(f"-I{path}" for path in includes), (f"-L{root / 'lib'}", "-ltvm_ffi")


def includes_of(source: Path) -> tuple[str, ...]:
    """Include flags for one file: the headers of its package, then TVM-FFI's."""
    return (f"-I{include_of(package_of(source))}", *ffi_flags()[0])


def definitions(config: Config) -> tuple[str, ...]:
    """A config as preprocessor definitions, which is how a native kernel sees it. Raises UsageError for a value that a
    compiler might hand to a shell.
    """
    for name, value in config.values:
        if why := refused_definition(name, value):
            raise UsageError(f"{why}.")
    return tuple(f"-D{name}={int(value) if isinstance(value, bool) else value}" for name, value in config.values)


def own_options(implementation: Implementation, config: Config) -> tuple[str, ...]:
    """What a file's author and a config say to its compiler. Raises UsageError for an option that is not known: see
    core.definition.compiler_options.
    """
    if why := refused(implementation.flags):
        raise UsageError(f"{implementation.source}: {why}.")
    return (*implementation.flags, *definitions(config))


def library_key(implementation: Implementation, config: Config, toolchain: Toolchain, compiler: str = "") -> str:
    """The name of a library: everything that goes into it. One built ahead leaves `compiler` out of its name, so that
    it
    serves machines without a compiler; one in the cache is made again after the compiler was upgraded."""
    text = implementation.source.read_text(encoding="utf-8")
    return cache.key_of(
        {
            "source": text,
            "headers": str(sorted(code_of(implementation.source).shared.items())),
            "flags": " ".join((*toolchain.flags, *own_options(implementation, config))),
            "compiler": compiler,
            "target": toolchain.target,
            "ffi": ffi_version(),
        }
    )


def command(implementation: Implementation, config: Config, toolchain: Toolchain, output: Path) -> list[str]:
    """The compiler's command line for a shared library."""
    source, (_, links) = implementation.source, ffi_flags()
    return [
        toolchain.compiler,
        *toolchain.flags,
        *own_options(implementation, config),
        *includes_of(source),
        str(source),
        "-o",
        str(output),
        *links,
    ]


def object_command(implementation: Implementation, config: Config, toolchain: Toolchain, output: Path) -> list[str]:
    """The command line for an object file whose code is to be compared (backends.object_code): a section for each
    function, and no numbers of lines,
    which error messages hold and which change with every comment."""
    own = ("-ffunction-sections", "-fdata-sections", "-Wno-builtin-macro-redefined")
    lines = ("-D__LINE__=0", '-D__FILE__=""')
    flags = tuple(flag for flag in toolchain.flags if flag != "-shared")
    host = ("-Xcompiler", ",".join(own)) if toolchain.compiler == "nvcc" else own
    source = implementation.source
    return [
        toolchain.compiler,
        *flags,
        *own_options(implementation, config),
        *includes_of(source),
        *lines,
        *host,
        "-c",
        str(source),
        "-o",
        str(output),
    ]


def compile_with(arguments: Sequence[str]) -> tuple[str, float]:
    """Run a compiler behind walls (walls.tool): it reads its toolchain, the folders named with -I and -L, the source
    and the headers that its hash covers, and writes beside its output. What it said and how long it took in seconds.

    Raises CompilationFailed with the end of its words, CompilationTimedOut with the limit that it met, NotNow where it
    was killed, twice, or had no processor.
    """
    if Path(arguments[0]).name == "nvcc" and (strange := [word for word in arguments if SHELL.search(word)]):
        raise UsageError(
            f"nvcc hands its words to a shell, which would expand {strange[0]!r:.200}. Rename the file or its folder."
        )
    output = Path(arguments[arguments.index("-o") + 1]).absolute() if "-o" in arguments else None
    try:
        for last in (False, True):
            started = time.perf_counter()
            done = tool.run(
                arguments, writable=[output.parent] if output is not None else (), readable=list(read_by(arguments))
            )
            took = time.perf_counter() - started
            if done.returncode < KILLED and done.returncode != OWN_FAULT:
                break
            if last and done.returncode >= KILLED and done.returncode not in CRASHED:
                raise NotNow(
                    f"it could not be compiled here ({Path(arguments[0]).name} was killed twice, status "
                    f"{done.returncode}). Free some memory, and run it again."
                )
    except tool.TookTooLong as error:
        if error.crowded:
            raise NotNow(
                f"it could not be compiled here within {error.limit_s:g} s, while others had the processors. Run it "
                "again when they are free."
            ) from error
        said = f"{error}\nThe command was:\n  {' '.join(arguments)}"
        raise CompilationTimedOut(said, error.limit_s) from error
    if done.returncode != 0:
        complaint = (done.stderr or done.stdout).strip()
        hint = f"\n{NOT_COVERED}" if any(word in complaint for word in UNREADABLE) else ""
        what = f"crashed with {CRASHED[done.returncode]}, twice" if done.returncode in CRASHED else "refused the source"
        raise CompilationFailed(
            f"The compiler {what}: {first_error(complaint)}{hint}\nRun this to see it whole:\n  "
            f"{' '.join(arguments)}\n{complaint[-3000:]}"
        )
    if output is not None and not output.is_file():
        raise CompilationFailed(
            f"The compiler ended well and left no {output.name}. Run this to see what it does:\n  {' '.join(arguments)}"
        )
    return done.stdout + done.stderr, took


def read_by(arguments: Sequence[str]) -> Iterator[Path]:
    """What a command may read beside its toolchain."""
    for word in arguments[1:]:
        if word[:2] in ("-I", "-L"):
            yield Path(word[2:])
        elif not word.startswith("-") and Path(word).suffix in SOURCES and Path(word).is_file():
            yield from (Path(word), *headers_of(Path(word)).values())


def first_error(complaint: str) -> str:
    """The line of a compiler's words that says first what is wrong; the first line where none says "error".

    >>> first_error("In file included from k.cpp:1:\\nk.h:7:3: error: 'x' was not declared\\n  7 |  x = 1;")
    "k.h:7:3: error: 'x' was not declared"
    """
    lines = [line.strip() for line in complaint.splitlines() if line.strip()] or ["it said nothing"]
    return next((line for line in lines if re.search(r"\b([Ee]rror|undefined reference)\b", line)), lines[0])[:400]


def built_folder(implementation: Implementation) -> Path:
    """Where `opforge build` leaves an operator's libraries."""
    return implementation.source.parent / "built"


def library(implementation: Implementation, config: Config, toolchain: Toolchain) -> cache.Entry:
    """The shared library of an implementation for a target: built ahead, cached, or compiled now."""
    ahead = library_key(implementation, config, toolchain)
    built = cache.ahead(built_folder(implementation) / ahead, LIBRARY)
    if built is not None:
        return built
    if shutil.which(toolchain.compiler) is None:
        raise EnvironmentLacks(
            f"{implementation.source.name} needs `{toolchain.compiler}`, which is not on PATH. Install it (apt-get "
            "install g++, or the CUDA toolkit for nvcc)."
        )
    key = library_key(implementation, config, toolchain, compiler_version(toolchain.compiler))
    return cache.obtain(
        cache.cache_root() / "native", key, LIBRARY, lambda path: _make(implementation, config, toolchain, path)
    )


def seconds_of(implementation: Implementation, config: Config, toolchain: Toolchain) -> float | None:
    """Seconds that the compiler took for the library that `library` gives, when it was made; None where there is none.
    Raises ValueError where what is said of it is no number.
    """
    keys = library_key(implementation, config, toolchain, compiler_version(toolchain.compiler))
    for folder in (
        built_folder(implementation) / library_key(implementation, config, toolchain),
        cache.cache_root() / "native" / keys,
    ):
        facts = cache.facts_of(folder)
        if "seconds" in facts:
            return float(facts["seconds"])
    return None


def build_ahead(implementation: Implementation, config: Config, toolchain: Toolchain) -> cache.Entry:
    """Compile into the operator's `built/` folder."""
    key = library_key(implementation, config, toolchain)
    return cache.store(
        built_folder(implementation) / key, LIBRARY, lambda path: _make(implementation, config, toolchain, path)
    )


def _make(implementation: Implementation, config: Config, toolchain: Toolchain, path: Path) -> Mapping[str, str]:
    output, took = compile_with(command(implementation, config, toolchain, path))
    return {
        "implementation": f"{implementation.operator}/{implementation.name}",
        "target": toolchain.target,
        "seconds": f"{took:.2f}",
        "log": output[-4000:],
    }


@lru_cache(maxsize=256)
def _load(path: str) -> Callable[..., Any]:
    import tvm_ffi

    module = tvm_ffi.load_module(path)
    try:
        function: Callable[..., Any] = getattr(module, ENTRY)
    except AttributeError as error:
        raise UsageError(
            f"The library has no function `{ENTRY}` for Python. Export yours at the end of the file: "
            f"OPFORGE_EXPORT({ENTRY}, your_function)"
        ) from error
    return function


def entry_point(path: Path) -> Callable[..., Any]:
    """The `run` that the library exports. It takes torch tensors: the inputs, the outputs, then the scalars."""
    return _load(str(path))


@lru_cache(maxsize=8)
def helper(name: str, compiler: str, includes: tuple[str, ...] = ()) -> Any:
    """The library made of a .cpp file of device/include/opforge/abi, which is no kernel, compiled once; None where no
    compiler is, or no TVM-FFI: kernels
    built ahead run without the one, Triton's without both."""
    path = helper_path(name, compiler, includes)
    if path is None:
        return None
    import tvm_ffi

    return tvm_ffi.load_module(str(path))


@lru_cache(maxsize=8)
def helper_path(name: str, compiler: str, includes: tuple[str, ...] = (), linked: bool = True) -> Path | None:
    """Where the library of `helper` lies, compiled now if it was not. A process that may write nothing later asks for
    it before. `linked`: with TVM-FFI, whose headers alone are used otherwise.
    """
    if shutil.which(compiler) is None or not installed("tvm_ffi"):
        return None
    source = INCLUDE / "opforge" / "abi" / name
    links = ffi_flags()[1] if linked else ()

    def make(path: Path) -> Mapping[str, str]:
        output, took = compile_with(
            [compiler, *BINDING_FLAGS, *includes_of(source), *includes, str(source), "-o", str(path), *links]
        )
        return {"implementation": source.name, "seconds": f"{took:.2f}", "log": output[-4000:]}

    code = code_of(source)
    texts = {"source": code.own, "headers": str(sorted(code.shared.items()))}
    flags = " ".join((*BINDING_FLAGS, *includes))
    key = cache.key_of({**texts, "flags": flags, "compiler": compiler_version(compiler), "ffi": ffi_version()})
    return cache.obtain(cache.cache_root() / "native", key, LIBRARY, make).path


CALLER = "prepared.cpp"
"""What binds kernels to one class of tensors: see `bound`."""


def bound(
    function: Callable[..., Any],
    tensors: Sequence[Any],
    shapes: Sequence[Sequence[int]],
    numbers: Sequence[int | float],
    compiler: str,
    alignment: int = 1,
) -> Callable[..., bool] | None:
    """A kernel's entry point for one class of tensors: see protocol.Kernel.

    function    a function of TVM-FFI: a kernel's entry point, or what refuses a call by returning false
    tensors     examples: the inputs, then the outputs; shapes: those in which the kernel takes them, as views
    numbers     the scalars, in the operator's order
    alignment   bytes that the addresses of tensors must be multiples of
    """
    module = helper(CALLER, compiler)
    if module is None or len(tensors) > MOST_BOUND:
        return None
    for tensor, shape in zip(tensors, shapes, strict=True):
        if math.prod(shape) != tensor.numel():
            raise ValueError(f"the kernel would see {math.prod(shape)} elements of a tensor with {tensor.numel()}")
    views = [(tensor, tensor.view(shape)) for tensor, shape in zip(tensors, shapes, strict=True)]
    examples = (part for tensor, view in views for part in (tensor, view.ndim, *view.shape, *view.stride()))
    prepared: Callable[..., bool] = module.prepare(function, alignment, len(tensors), *examples, *numbers)
    return prepared


def one_by_one(inputs: Sequence[Any]) -> Sequence[Any]:
    """Arguments as compiled code takes them: a list is its length, and then its tensors."""
    if not any(isinstance(value, list) for value in inputs):
        return inputs
    return [part for value in inputs for part in ((len(value), *value) if isinstance(value, list) else (value,))]


def scalar_arguments(operator: Operator, scalars: Mapping[str, ScalarValue]) -> tuple[int | float, ...]:
    """The scalars as numbers, in the operator's order; a choice of words is passed as its place among the choices."""
    numbers: list[int | float] = []
    for scalar in operator.scalars:
        value = scalars[scalar.name]
        numbers.append(scalar.choices.index(value) if isinstance(value, str) else value)
    return tuple(numbers)
