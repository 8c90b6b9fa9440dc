"""Reads what an implementation file says of itself, without running it.

A Python file says it in module constants that are literals. A C++ or CUDA file says the same in TOML, in the first
comment that begins with `/* opforge`. The first line of the docstring (Python) or of the leading `//` comment (C++) is
the idea.

What belongs to code that operators share, such as the space of a launcher, is said there and taken from there by name:
in Python
`from opforge.device.triton.blocks import SPACE as SPACE`, in C++ `like = "opforge/rows/onchip.h"`, whose own comment
says it; what the file says itself goes before that.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Container
from pathlib import Path
from typing import Any

from opforge.core.definition.dtypes import DTYPES
from opforge.core.definition.implementation import COMPARED_AS_IS, LAYOUTS, Config, Implementation
from opforge.core.language.errors import UsageError
from opforge.core.language.plugins import plugged
from opforge.registry.statement_checks import (
    check_conditions,
    check_default,
    check_native,
    check_options,
    check_space,
    get_close_matches,
    line_of,
    misspelt,
)

PACKAGE = Path(__file__).resolve().parent.parent
BACKENDS = {
    "torch": (".py",),
    "triton": (".py",),
    "tilelang": (".py",),
    "cuda": (".cu",),
    "cpp": (".cpp",),
    "library": (".py",),
}
_KEYS = {
    "SUPPORTS": dict,
    "SPACE": dict,
    "LIMITS": dict,
    "DEFAULT": dict,
    "LAYOUTS": tuple,
    "DTYPES": tuple,
    "FLAGS": tuple,
    "ANY_RANK": bool,
    "ARCH": str,
    "NEEDS": str,
    "INACCURATE": str,
    "INACCURATE_COMPILED": str,
    "NOT_CALLED": str,
    "DETERMINISTIC": bool,
    "BEST": dict,
}


def known_backends() -> tuple[str, ...]:
    """The backends that a file's name may begin with: opforge's own, then those of plugins."""
    return (*BACKENDS, *(made.name for made in plugged("opforge.backends").values() if made.name not in BACKENDS))


def suffixes_of(backend: str) -> tuple[str, ...]:
    """The suffixes of a backend's files; of a plugin what its class says in `suffixes`, else ".py". Empty where the
    backend is unknown.
    """
    if backend in BACKENDS:
        return BACKENDS[backend]
    plugin = next((made for made in plugged("opforge.backends").values() if made.name == backend), None)
    return tuple(getattr(plugin, "suffixes", (".py",))) if plugin is not None else ()


def find_source(operator: str, folder: Path, name: str) -> tuple[str, Path]:
    """The backend and the file of the implementation `name`. Raises UsageError when the backend is unknown or there is
    no such file.
    """
    backend = name.split("_", 1)[0]
    suffixes = suffixes_of(backend)
    if not suffixes:
        raise UsageError(
            f"{operator} lists {name!r}; a name begins with its backend: {', '.join(known_backends())}. Rename it, "
            f"e.g. triton_{name}."
        )
    source = next((path for suffix in suffixes if (path := folder / f"{name}{suffix}").is_file()), None)
    if source is None:
        raise UsageError(
            f"{operator} lists {name!r}, but {folder / name}{suffixes[0]} does not exist. Write it or take the name "
            "out of op.py."
        )
    return backend, source


ENTRY = {"torch": "run", "library": "run", "triton": "launch|run", "tilelang": "program"}
"""The function by which an implementation in Python is called. A file without one is no implementation of its own."""


def implementation_stems(folder: Path, listed: Container[str] = ()) -> tuple[str, ...]:
    """Names of the implementations in a folder, in alphabetical order: files called BACKEND_IDEA, those in Python that
    define what is called. Those that are `listed` are not looked into: left out.
    """
    found = []
    for path in sorted(folder.iterdir()):
        backend, _, idea = path.stem.partition("_")
        # asking for a plugin's suffixes looks through sys.path: not for __pycache__ and what is listed anyway
        if (
            not (backend and idea)
            or path.stem in listed
            or not path.is_file()
            or path.suffix not in suffixes_of(backend)
        ):
            continue
        entry = ENTRY.get(backend)
        defined = rf"^(def ({entry})\b|({entry}) *=|from .* import .*\b({entry})\b)"
        if entry is None or re.search(defined, path.read_text(encoding="utf-8"), re.MULTILINE):
            found.append(path.stem)
    return tuple(found)


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
            kind = "a dict of names" if expected is dict else f"a {expected.__name__}"
            raise UsageError(
                f"{line_of(source, key)}: {key} must be {kind}, not {type(value).__name__}. Correct it there."
            )
    layouts = said.get("LAYOUTS", ("contiguous",))
    if not all(layout in LAYOUTS for layout in layouts):
        raise UsageError(
            f"{line_of(source, 'LAYOUTS')}: LAYOUTS {tuple(layouts)!r:.80} has a layout outside those that there are: "
            f"{', '.join(LAYOUTS)}. Choose among them."
        )
    for dtype in said.get("DTYPES", ()):
        if not isinstance(dtype, str) or dtype not in DTYPES:
            raise UsageError(
                f"{line_of(source, 'DTYPES')}: DTYPES has {dtype!r}, which is no dtype. Known: {', '.join(DTYPES)}. "
                "Choose among them."
            )
    for key, values in said.get("SPACE", {}).items():
        if not isinstance(key, str) or not isinstance(values, list | tuple):
            raise UsageError(
                f"{line_of(source, 'SPACE', str(key))}: SPACE {key!r} must be a name with a tuple of values, not "
                f'{values!r:.80}. Write for example {{"BLOCK": (256, 512)}}.'
            )
    if (said.get("INACCURATE") or said.get("INACCURATE_COMPILED")) and backend not in COMPARED_AS_IS:
        raise UsageError(
            f"{source}: only baselines ({', '.join(COMPARED_AS_IS)}) may be INACCURATE and timed all the same. Take "
            "it out, and let it pass."
        )
    space = {key: tuple(values) for key, values in said.get("SPACE", {}).items()}
    default = Config(tuple(said.get("DEFAULT", {}).items()))
    check_space(source, space, default.as_dict())
    for key in ("SUPPORTS", "LIMITS"):
        check_conditions(source, key, said.get(key, {}))
    check_default(source, default.as_dict(), space, said.get("LIMITS", {}))
    check_options(source, said.get("FLAGS", ()))
    if source.suffix != ".py":
        check_native(source, _text(source), {**{key: (value,) for key, value in default.values}, **space})
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
        needs=said.get("NEEDS", ""),
        inaccurate=said.get("INACCURATE", ""),
        not_called=said.get("NOT_CALLED", ""),
        inaccurate_compiled=said.get("INACCURATE_COMPILED", ""),
        deterministic=said.get("DETERMINISTIC", True),
        best=said.get("BEST", {}),
    )


def _python(source: Path) -> tuple[str, dict[str, Any]]:
    tree = _parsed(source)
    said: dict[str, Any] = {}
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("opforge."):
            for alias in node.names:
                if (key := alias.asname or alias.name) in _KEYS:
                    said[key] = _shared_literal(source, node, alias.name)
        elif (key := _assigned(node)) in _KEYS:
            said[key] = _literal(source, node, key)
        elif (meant := misspelt(key, _KEYS)) is not None:
            raise UsageError(
                f"{source}:{node.lineno}: {key} says nothing to opforge. Did you mean {meant}? Otherwise give it a "
                "name that is not so near."
            )
    paragraph = (ast.get_docstring(tree) or "").strip().partition("\n\n")[0]
    return (" ".join(paragraph.split()) or source.stem), said


def _text(source: Path) -> str:
    try:
        return source.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise UsageError(f"{source} is not UTF-8: {error.reason} at byte {error.start}. Save it as UTF-8.") from error


def _parsed(source: Path) -> ast.Module:
    try:
        return ast.parse(_text(source))
    except (SyntaxError, ValueError, RecursionError) as error:
        line = getattr(error, "lineno", None) or 1
        raise UsageError(
            f"{source}:{line}: {getattr(error, 'msg', error)}. The file must parse before it can be listed."
        ) from error


def _assigned(node: ast.stmt) -> str:
    """The one name that a statement assigns to, with an annotation or without, or an empty string."""
    if isinstance(node, ast.AnnAssign):
        return node.target.id if isinstance(node.target, ast.Name) and node.value is not None else ""
    return (
        node.targets[0].id
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name)
        else ""
    )


def _literal(source: Path, node: ast.stmt, key: str) -> Any:
    assert isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None
    try:
        return ast.literal_eval(node.value)
    except (ValueError, TypeError) as error:
        raise UsageError(
            f"{source}:{node.lineno}: {key} must be a literal, because it is read without running the file. Write its "
            "values out."
        ) from error


def _shared_literal(source: Path, statement: ast.ImportFrom, name: str) -> Any:
    """The literal called `name` in the module of opforge that an import names, read without running it."""
    assert statement.module is not None
    shared = _shared_file(source, Path(*statement.module.split(".")[1:]).with_suffix(".py"))
    if shared is not None:
        for node in _parsed(shared).body:
            if _assigned(node) == name:
                return _literal(shared, node, name)
    raise UsageError(
        f"{source}:{statement.lineno}: {statement.module} has no literal {name}. Write it out in the file."
    )


def _shared_file(source: Path, *places: Path) -> Path | None:
    """The first file that is there: in the package that the source lies in, which may be of another revision, then in
    the one that runs.
    """
    folders = [
        folder
        for folder in source.resolve().parents
        if any((folder / name / "opforge").is_dir() for name in ("device/include", "include"))
    ]
    return next(
        (folder / place for folder in (*folders, PACKAGE) for place in places if (folder / place).is_file()), None
    )


def _native(source: Path) -> tuple[str, dict[str, Any]]:
    text = _text(source)
    first = re.match(r"\s*//\s*(.+)", text)
    idea = first.group(1).strip() if first else source.stem
    said = _toml(source, text)
    if (shared := said.pop("LIKE", None)) is not None:
        header = _shared_file(source, Path("device", "include", str(shared)), Path("include", str(shared)))
        if header is None:
            raise UsageError(
                f"{source}: like = {shared!r} is no header of opforge. Name one of device/include/opforge, such as "
                "opforge/rows/onchip.h."
            )
        said = {**_native(header)[1], **said}
    strange = set(said) - set(_KEYS)
    if strange:
        key = min(strange)
        near = get_close_matches(key, _KEYS)
        raise UsageError(
            f"{line_of(source, key)}: unknown keys {', '.join(sorted(strange)).lower()} in the /* opforge … */ "
            "comment. "
            f"{f'Did you mean {near[0].lower()}? ' if near else ''}Known: {', '.join(sorted(_KEYS)).lower()}."
        )
    return idea, said


def _toml(source: Path, text: str) -> dict[str, Any]:
    """The TOML of the first comment that begins with `/* opforge`, keys in capitals; empty without one."""
    block = re.search(r"/\*\s*opforge\b(.*?)\*/", text, re.DOTALL)
    if not block:
        return {}
    import tomllib  # for those who read a native file: `opforge list` doesn't

    try:
        return {key.upper(): value for key, value in tomllib.loads(block.group(1)).items()}
    except tomllib.TOMLDecodeError as error:
        raise UsageError(
            f"{source}: the /* opforge … */ comment is not TOML: {error}. Write it as in docs/kernels.md: layouts = "
            '["contiguous", "rows"]'
        ) from error
