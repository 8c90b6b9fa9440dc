"""What a candidate changes: parameters only, the code of one kernel, or what callers see; and what is refused unread.

The walls around the workers are what holds a hostile candidate. What is refused here is refused because it is no
kernel: nothing is compiled that names files, processes, sockets or loaders, and no candidate is timed that claims less
than it changes.
"""

from __future__ import annotations

import ast
import difflib
import re

from opforge.core.evidence.optimization import INTERFACE, LOGIC, PARAMETERS
from opforge.forge.changes import classify

LONGEST = 64_000
"""Letters of a candidate. The longest kernel file of this package has 30,000."""
_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_EXPORT = re.compile(r"OPFORGE_EXPORT\(\s*(\w+)\s*,\s*(\w+)\s*\)")
_STANDARD = frozenset(
    """
    algorithm array atomic cfloat climits cmath cstddef cstdint cstring functional limits memory numeric tuple
    optional type_traits utility vector cuda_runtime.h cuda_fp16.h cuda_bf16.h immintrin.h omp.h
    """.split()  # noqa: SIM905
)
_DIRECTIVES = frozenset("define undef if ifdef ifndef else elif endif pragma error".split())  # noqa: SIM905
_FOREIGN = re.compile(
    r"\b(system|popen|fork|vfork|exec[lv]\w*|posix_spawn\w*|dlopen|dlsym|ptrace|socket|connect|syscall|mmap|mprotect"
    r"|fopen|freopen|open|openat|creat|unlink|remove|rename|getenv|setenv|signal|sigaction|fstream|ifstream|ofstream"
    r"|filesystem|incbin|__asm__|asm|include_next|embed|pthread_\w+|clock_gettime|chrono|__attribute__\s*\(\(\s*"
    r"(constructor|destructor))\b"
)
_PYTHON_ROOTS = frozenset(("triton", "torch", "math", "functools", "tilelang", "opforge", "__future__"))
_PACKAGE = ("opforge.device", "opforge.core.philox")
"""What kernels of this package import of it: what they are made of, and the random numbers that every backend draws."""
_PYTHON_NAMES = frozenset(
    """
    eval exec compile open __import__ globals locals vars getattr setattr delattr input breakpoint __builtins__
    __loader__ __spec__
    """.split()  # noqa: SIM905
)


def refusal(text: str, suffix: str, like: str) -> str:
    """Why a candidate's text is not even compiled; "" where it may be. like: the text that it shall replace."""
    if len(text) > LONGEST:
        return f"{len(text)} letters: a kernel has less than {LONGEST}"
    if "\0" in text or not text.strip():
        return "no text"
    said = _python_refusal(text) if suffix == ".py" else _native_refusal(text)
    return said or (INTERFACE_REFUSED if classified(like, text, suffix) == INTERFACE else "")


INTERFACE_REFUSED = (
    "it changes what callers see (the entry point or its arguments): that is another operator, and every file of it "
    "would change together"
)


def _native_refusal(text: str) -> str:
    code = _COMMENT.sub(" ", text)
    # a line that is continued would hide a directive from the eye
    code = code.replace("\\\n", "")
    for line in code.splitlines():
        if (directive := re.match(r"\s*(?:#|%:|\?\?=)\s*(\w+)\s*(.*)", line)) is None:
            continue
        if directive[1] == "include":
            name = directive[2].strip().strip('<>"')
            if name not in _STANDARD and not re.fullmatch(r"opforge/[\w/]+\.h", name):
                return f"it includes {name[:60]!r}: only opforge's headers and the plain standard ones are there"
        elif directive[1] not in _DIRECTIVES:
            return f"a directive #{directive[1]}"
    if (found := _FOREIGN.search(code)) is not None:
        return f"it names {found[0].strip()[:40]!r}, which no kernel needs"
    if _EXPORT.search(code) is None:
        return "it exports no run: OPFORGE_EXPORT(run, NAME) is missing"
    return ""


def _python_refusal(text: str) -> str:
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError) as error:
        return f"no Python: {getattr(error, 'msg', error)}"
    for node in ast.walk(tree):
        roots = []
        if isinstance(node, ast.Import):
            roots = [alias.name.split(".")[0] for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            roots = [(node.module or "").split(".")[0] or "."]
            if (node.module or "").startswith("opforge") and not (node.module or "").startswith(_PACKAGE):
                return f"it imports {node.module}: kernels import opforge.device alone"
        elif isinstance(node, ast.Name) and node.id in _PYTHON_NAMES:
            return f"it names {node.id!r}, which no kernel needs"
        elif isinstance(node, ast.Attribute) and node.attr.startswith("__"):
            return f"it reaches for {node.attr!r}, which no kernel needs"
        if strange := [root for root in roots if root not in _PYTHON_ROOTS]:
            return f"it imports {strange[0]!r}: kernels import triton, torch, math and opforge.device"
    return ""


def classified(before: str, after: str, suffix: str) -> str:
    """PARAMETERS where the two texts differ in their tunables alone, INTERFACE where callers would see a difference,
    else LOGIC (forge.changes). Raises UsageError for a text that does not parse.
    """
    name = f"kernel{suffix}"
    kinds = classify({name: before}, {name: after}).kinds
    return next((kind for kind in (INTERFACE, LOGIC) if kind in kinds), PARAMETERS)


def claims_less(claimed: str, found: str) -> bool:
    """Whether a change says that it touches less than it does."""
    order = (PARAMETERS, LOGIC, INTERFACE)
    return order.index(claimed) < order.index(found)


def diff(before: str, after: str, name: str) -> str:
    """The unified difference of two texts."""
    lines = difflib.unified_diff(before.splitlines(), after.splitlines(), f"a/{name}", f"b/{name}", "", "", 2, "")
    return "\n".join(lines)
