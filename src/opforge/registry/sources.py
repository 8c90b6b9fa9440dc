"""Reads what an implementation file says of itself, without running it.

A Python file says it in module constants that are literals. A C++ or CUDA file says the same in TOML, in the first
comment that begins with `/* opforge`. The first line of the docstring (Python) or of the leading `//` comment (C++) is
the idea.
"""

from __future__ import annotations

import ast
import re
import tomllib
from pathlib import Path
from typing import Any

from opforge.core.errors import UsageError
from opforge.core.implementation import LAYOUTS, Config, Implementation

BACKENDS = {"torch": (".py",), "triton": (".py",), "tilelang": (".py",), "cuda": (".cu",), "cpp": (".cpp",)}
_KEYS = {"SUPPORTS": dict, "SPACE": dict, "LIMITS": dict, "DEFAULT": dict, "LAYOUTS": tuple, "DTYPES": tuple, "FLAGS": tuple, "ANY_RANK": bool, "ARCH": str, "DETERMINISTIC": bool}


def find_source(operator: str, folder: Path, name: str) -> tuple[str, Path]:
    """The backend and the file of the implementation `name`. Raises UsageError when the backend is unknown or there is no such file."""
    backend = name.split("_", 1)[0]
    if backend not in BACKENDS:
        raise UsageError(f"{operator} lists {name!r}; a name begins with its backend: {', '.join(BACKENDS)}. Rename it, e.g. triton_{name}.")
    source = next((path for suffix in BACKENDS[backend] if (path := folder / f"{name}{suffix}").is_file()), None)
    if source is None:
        raise UsageError(f"{operator} lists {name!r}, but {folder / name}{BACKENDS[backend][0]} does not exist. Write it or take the name out of op.py.")
    return backend, source


def read_implementation(operator: str, folder: Path, name: str) -> Implementation:
    """The Implementation that the file `folder/name.*` describes.

    Raises UsageError when there is no such file, its backend is unknown, or what it says is malformed.
    """
    backend, source = find_source(operator, folder, name)
    idea, said = _python(source) if source.suffix == ".py" else _native(source)
    for key, value in said.items():
        expected = _KEYS[key]
        if expected is tuple and isinstance(value, list):
            said[key] = tuple(value)
        elif not isinstance(value, expected):
            raise UsageError(f"{source}: {key} must be a {expected.__name__}, not {type(value).__name__}.")
    layouts = said.get("LAYOUTS", ("contiguous",))
    if not all(layout in LAYOUTS for layout in layouts):
        raise UsageError(f"{source}: LAYOUTS {layouts} has a layout outside {LAYOUTS}.")
    for key, values in said.get("SPACE", {}).items():
        if not isinstance(key, str) or not isinstance(values, list | tuple):
            raise UsageError(f"{source}: SPACE {key!r} must be a name with a tuple of values, not {values!r:.80}.")
    space = {key: tuple(values) for key, values in said.get("SPACE", {}).items()}
    default = Config(tuple(said.get("DEFAULT", {}).items()))
    for key, value in default.values:
        if key in space and value not in space[key]:
            raise UsageError(f"{source}: DEFAULT {key} = {value!r} is not in its SPACE {space[key]}. Add it there.")
    return Implementation(
        name=name,
        operator=operator,
        backend=backend,
        source=source,
        idea=idea,
        dtypes=said.get("DTYPES"),
        supports=said.get("SUPPORTS", {}),
        space=space,
        limits=said.get("LIMITS", {}),
        default=default,
        layouts=tuple(layouts),
        flags=tuple(said.get("FLAGS", ())),
        any_rank=said.get("ANY_RANK", False),
        arch=said.get("ARCH", ""),
        deterministic=said.get("DETERMINISTIC", True),
    )


def _python(source: Path) -> tuple[str, dict[str, Any]]:
    try:
        tree = ast.parse(source.read_text(encoding="utf-8"))
    except SyntaxError as error:
        raise UsageError(f"{source}:{error.lineno}: {error.msg}. The file must parse before it can be listed.") from error
    said: dict[str, Any] = {}
    for node in tree.body:
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name) and node.targets[0].id in _KEYS:
            key = node.targets[0].id
            try:
                said[key] = ast.literal_eval(node.value)
            except ValueError as error:
                raise UsageError(f"{source}:{node.lineno}: {key} must be a literal, because it is read without running the file.") from error
    doc = (ast.get_docstring(tree) or "").strip().splitlines()
    return (doc[0] if doc else source.stem), said


def _native(source: Path) -> tuple[str, dict[str, Any]]:
    text = source.read_text(encoding="utf-8")
    first = re.match(r"\s*//\s*(.+)", text)
    idea = first.group(1).strip() if first else source.stem
    block = re.search(r"/\*\s*opforge\b(.*?)\*/", text, re.DOTALL)
    if not block:
        return idea, {}
    try:
        data = tomllib.loads(block.group(1))
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{source}: the /* opforge … */ comment is not TOML: {error}.") from error
    said = {key.upper(): value for key, value in data.items()}
    strange = set(said) - set(_KEYS)
    if strange:
        raise UsageError(f"{source}: unknown keys {sorted(strange)} in the /* opforge … */ comment. Known: {', '.join(sorted(_KEYS)).lower()}.")
    return idea, said
