"""What a guest's definition may reach: nouns, mathematics and its arguments; no stack, clock, file or process.

`op.py` says what is right, so it must say the same whoever asks. It is loaded in opforge's own process, and its text is
read first: every way from it to the interpreter, the operating system or opforge's judges begins with an import, a
name or an attribute that is refused here. What is left computes from its arguments alone.
"""

from __future__ import annotations

import ast
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from opforge.core.language.errors import UsageError

FIELD = re.compile(r"\{[^{}]*?\.(\w+)")
"""An attribute that str.format would ask for."""
TRUSTED = "OPFORGE_TRUSTED_HOMES"
"""Homes whose definitions are loaded unread, since their user has read them."""
OPFORGE = ("opforge.core", "opforge.definitions")
_STANDARD = """
__future__ abc bisect cmath collections contextlib copy dataclasses decimal enum fractions functools heapq itertools
math numbers operator pathlib random re statistics string textwrap typing
"""
STANDARD = frozenset(_STANDARD.split())
"""Modules of the standard library that a definition may import: they tell it nothing of the process."""
_PACKAGES = """
torch numpy scipy einops ml_dtypes typing_extensions
"""
PACKAGES = frozenset(_PACKAGES.split())
"""Packages that compute."""
_NAMES = """
__import__ __builtins__ __loader__ __spec__ eval exec compile open globals locals vars setattr delattr breakpoint
"""
NAMES = frozenset(_NAMES.split())
_BUT_HARMLESS = """
array calendar code copy functools glob itertools math operator queue random select signal statistics string struct
types abc bisect cmath collections contextlib dataclasses decimal enum fractions heapq numbers re textwrap typing
token symbol
"""
BUT_HARMLESS = frozenset(_BUT_HARMLESS.split())
"""Modules' names that are attributes of tensors and packages, too, or harmless."""
_ATTRIBUTES = """
tb_frame tb_next f_back f_code f_locals f_globals f_builtins gi_frame gi_code cr_frame cr_code ag_frame ag_code
attrgetter methodcaller Formatter get_type_hints ForwardRef singledispatch singledispatchmethod SystemRandom open
read_text read_bytes write_text write_bytes stat lstat touch unlink mkdir rmdir rename symlink_to chmod owner exists
is_file is_dir cwd home load save loads dumps from_file fromfile tofile memmap loadtxt savetxt genfromtxt ctypeslib
f2py LowLevelCallable Event Stream Timer benchmark profiler library load_library hub jit fx package onnx overrides
distributed cpp_extension register_hook data_ptr storage untyped_storage is_shared is_pinned get_num_threads
get_num_interop_threads set_num_threads set_default_dtype set_default_device set_default_tensor_type
use_deterministic_algorithms set_flush_denormal blind own_words moved plugins user_folders spans
utils testing measure datasets DataSource savez savez_compressed datetime64 datetime_as_string busday_count monitor
DataLoader DataParallel memory_allocated memory_reserved memory_stats clock_rate utilization power_draw temperature
readlink resolve is_symlink is_mount is_socket is_fifo is_block_device is_char_device samefile iterdir walk expanduser
hardlink_to lchmod register_module_forward_hook register_module_forward_pre_hook
"""
ATTRIBUTES = (sys.stdlib_module_names - BUT_HARMLESS) | frozenset(_ATTRIBUTES.split())
"""Attributes that lead to the interpreter, the clock, files, or what other code computes with."""
_UNDERSCORED = """
_replace _asdict _fields _make _value_ _name_ _missing_
"""
UNDERSCORED = frozenset(_UNDERSCORED.split())
_DOUBLE = """
__name__ __doc__ __init__ __post_init__ __call__ __repr__ __str__ __eq__ __ne__ __lt__ __le__ __gt__ __ge__ __hash__
__len__ __iter__ __next__ __getitem__ __contains__ __enter__ __exit__ __add__ __radd__ __sub__ __rsub__ __mul__
__rmul__ __truediv__ __rtruediv__ __floordiv__ __mod__ __pow__ __rpow__ __matmul__ __neg__ __abs__ __bool__ __int__
__float__ __index__ __and__ __or__ __invert__ __slots__ __all__ __file__ __main__ __annotations__
"""
DOUBLE = frozenset(_DOUBLE.split())
"""Names of Python's own that a definition may use."""


def check_reach(path: Path, text: str) -> None:
    """Raises UsageError, with the line, where a definition reaches for more than it is made of.

    A text that does not parse is left to the import, which says so.
    """
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError):
        return
    found = next(_reaches(tree), None)
    if found is not None:
        line, what, reason = found
        raise UsageError(
            f"{path}:{line}: {what} {reason}. A definition is made of opforge.core, opforge.definitions, torch, NumPy "
            "and mathematics, so that its answer does not depend on who asks, or when. Compute it from the arguments. "
            f"Of a home that you have read, or wrote, op.py may do more: {TRUSTED}={path.parent.parent}"
        )


def is_trusted(path: Path) -> bool:
    """Whether the user has said that definitions below one of these folders are loaded unread."""
    homes = [Path(name).resolve() for name in os.environ.get(TRUSTED, "").split(os.pathsep) if name]
    return any(path.resolve().is_relative_to(home) for home in homes)


def _reaches(tree: ast.Module) -> Iterator[tuple[int, str, str]]:
    """Line, what stands there, and why it is refused."""
    called = {id(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    imported = {name for node in ast.walk(tree) for name in _bound(node)}
    for node in ast.walk(tree):
        line = getattr(node, "lineno", 0)
        for module, names in _modules(node):
            if not _may_import(module):
                yield line, f"import {module}", "is no mathematics"
            for part in (*module.split(".")[1:], *names):
                if _hidden(part):
                    yield line, f"{module}: {part}", "leads out of the definition"
        match node:
            case ast.Name(id=name) if name in NAMES or (name.startswith("__") and name not in DOUBLE):
                yield line, name, "leads out of the definition"
            case ast.Attribute(attr=name) if _hidden(name):
                yield line, f".{name}", "leads out of the definition"
            case ast.MatchClass(kwd_attrs=asked_of) if hidden := [name for name in asked_of if _hidden(name)]:
                yield line, f"case …({hidden[0]}=…)", "leads out of the definition"
            case ast.Constant(value=str(text)) if FIELD.search(text) and any(map(_hidden, FIELD.findall(text))):
                yield line, repr(text), "leads out of the definition"
            case ast.Attribute(value=value, ctx=ast.Store() | ast.Del()) if not _is_self(value):
                yield line, ast.unparse(node), "is changed: definitions change nothing that is not their own"
            case ast.Subscript(value=value, ctx=ast.Store() | ast.Del()) if _root(value) in imported:
                yield line, ast.unparse(node), "is changed: definitions change nothing that is not their own"
            case ast.Call(func=ast.Name(id="getattr" | "hasattr"), args=[_, asked, *_]) if _word(asked) is None:
                yield line, ast.unparse(node), "asks for an attribute that nobody can read here"
            case ast.Call(func=ast.Name(id="getattr" | "hasattr"), args=[_, asked, *_]) if _hidden(_word(asked) or ""):
                yield line, ast.unparse(node), "leads out of the definition"
            case ast.Name(id="getattr" | "hasattr", ctx=ast.Load()) if id(node) not in called:
                yield line, f"{node.id} as a value", "leads out of the definition"
            case ast.Call(func=ast.Name(id="type"), args=[_, _, *_]):
                yield line, ast.unparse(node), "changes how other code reads an object"
            case ast.Global(names=kept):
                yield line, f"global {', '.join(kept)}", "keeps something from one call to the next"
            case ast.FunctionDef(name=name) if name.startswith("__") and name not in DOUBLE:
                yield line, f"def {name}", "changes how other code reads an object"
            case ast.keyword(arg="metaclass"):
                yield getattr(node.value, "lineno", 0), "metaclass", "changes how other code reads an object"


def _bound(node: ast.AST) -> Iterator[str]:
    """Names that an import gives."""
    if isinstance(node, ast.Import | ast.ImportFrom):
        for alias in node.names:
            yield alias.asname or alias.name.split(".")[0]


def _modules(node: ast.AST) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Modules that a statement imports, and the names that it takes from them."""
    if isinstance(node, ast.Import):
        for alias in node.names:
            yield alias.name, ()
    elif isinstance(node, ast.ImportFrom):
        module = "." * node.level + (node.module or "")
        if module == "opforge":
            for alias in node.names:
                yield f"opforge.{alias.name}", ()
        else:
            yield module, tuple(alias.name for alias in node.names)


def _may_import(module: str) -> bool:
    root = module.split(".")[0]
    if root == "opforge":
        return any(module == room or module.startswith(f"{room}.") for room in OPFORGE)
    return root in STANDARD or root in PACKAGES


def _hidden(name: str) -> bool:
    if name.startswith("__"):
        return name not in DOUBLE
    return name in ATTRIBUTES or (name.startswith("_") and name not in UNDERSCORED)


def _word(node: ast.expr) -> str | None:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None


def _root(node: ast.expr) -> str:
    while isinstance(node, ast.Attribute | ast.Subscript):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


def _is_self(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id == "self"
