"""The code that operators share and a kernel file reaches: headers that it includes, modules of opforge that it
imports. One hash for all of it.

A record, a tuned choice and a replay name an implementation by this hash: what was measured no longer describes a
kernel after any of the code that it is made of has changed, in its own file or not.

A kernel is made with the shared code of the package that its file lies in. A revision that is put aside for a
comparison (`workbench/sides.py`) brings its own; a home outside any package uses that of the opforge that runs.
"""

from __future__ import annotations

import ast
import hashlib
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from opforge.backends.cache import sha256_of
from opforge.core.moved import MOVED

T = TypeVar("T")

PACKAGE = Path(__file__).resolve().parent.parent
INCLUDE = PACKAGE / "device" / "include"

SHARED = ("device", "include", "primitives")
"""The folders of a package that hold device code alone, and that a revision is put aside with: today's, then the two of
revisions before it.
"""

_INCLUDED = re.compile(r'^\s*#\s*include\s*(?:"([^"]+)"|<(opforge/[^>]+)>)', re.MULTILINE)


def package_of(path: Path) -> Path:
    """The package that a kernel's file or folder lies in, known by its headers; the one that runs where it lies in
    none.
    """
    return next(
        (
            place
            for place in path.resolve().parents
            if (include_of(place) / "opforge").is_dir() and place.name != "device"
        ),
        PACKAGE,
    )


def include_of(package: Path) -> Path:
    """The folder of a package's headers: device/include; in earlier revisions include."""
    today = package / "device" / "include"
    return today if today.is_dir() else package / "include"


def headers_of(source: Path) -> dict[str, Path]:
    """Every header that a C++ or CUDA file includes by name in quotes, and that those include, found beside it or in
    opforge's own folder.
    """
    headers: dict[str, Path] = {}
    own = include_of(package_of(source))
    pending = [(name, source.parent) for name in _asked_once(_included, source)]
    while pending:
        name, beside = pending.pop()
        path = next((place for place in (beside / name, own / name) if place.is_file()), None)
        if path is None or name in headers:
            continue
        headers[name] = path
        pending += [(inner, path.parent) for inner in _asked_once(_included, path)]
    return headers


def _included(path: Path) -> tuple[str, ...]:
    return tuple(quoted or own for quoted, own in _INCLUDED.findall(path.read_text(encoding="utf-8")))


def modules_of(source: Path) -> dict[str, Path]:
    """Every module of opforge that a Python file imports, anywhere in it, and that those import."""
    modules: dict[str, Path] = {}
    packages = tuple(dict.fromkeys((package_of(source), PACKAGE)))
    pending = list(_asked_once(_imported, source))
    while pending:
        name = pending.pop()
        path = file_of(name, packages)
        if path is None or name in modules:
            continue
        modules[name] = path
        pending += _asked_once(_imported, path)
    return modules


def file_of(name: str, packages: Iterable[Path]) -> Path | None:
    """The file of a module of opforge, in the first of the packages that has it; None where none has."""
    # an earlier revision has what lies elsewhere today where it lay then
    stems = [
        package.joinpath(*known.split(".")[1:])
        for known in dict.fromkeys((name, MOVED.get(name, name)))
        for package in packages
    ]
    places = (place for stem in stems for place in (stem.with_suffix(".py"), stem / "__init__.py"))
    return next((place for place in places if place.is_file()), None)


def _imported(path: Path) -> tuple[str, ...]:
    """Names below `opforge` in a file's imports: modules, and what may be a module ("from opforge.core import
    philox").
    """
    text = path.read_text(encoding="utf-8")
    return tuple(_names_imported(text)) if "opforge" in text else ()


def _statements(tree: ast.AST) -> Iterator[ast.AST]:
    """Every statement of a module, however deep; expressions, which hold none, are not walked."""
    for field in ("body", "orelse", "finalbody", "handlers", "cases"):
        for node in getattr(tree, field, ()):
            yield node
            yield from _statements(node)


def _names_imported(text: str) -> Iterator[str]:
    for node in _statements(ast.parse(text)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.startswith("opforge."))
        elif (
            isinstance(node, ast.ImportFrom)
            and node.level == 0
            and node.module
            and node.module.split(".")[0] == "opforge"
        ):
            yield from (node.module, *(f"{node.module}.{alias.name}" for alias in node.names))


@dataclass(frozen=True, kw_only=True)
class SourceHashes:
    """A kernel file's text as it is hashed: its own hash, and those of the shared files that it reaches, by name."""

    own: str
    shared: Mapping[str, str]


def code_of(source: Path) -> SourceHashes:
    """The SourceHashes of a kernel file. What was found before is given again as long as the file system says that
    nothing has changed: every class of tensors
    that a model calls an operator with asks for it."""
    known = _known.get(source)
    if known is not None and known[1] == _state(known[0]):
        return known[2]
    began = time.time_ns()
    shared = modules_of(source) if source.suffix == ".py" else headers_of(source)
    of_shared = {name: _asked_once(sha256_of, path) for name, path in shared.items()}
    hashes = SourceHashes(own=sha256_of(source), shared=of_shared)
    # the folders too: a header may be put where it is found before another, or where none was
    own = include_of(package_of(source))
    places = (
        source,
        *shared.values(),
        *dict.fromkeys(path.parent for path in (source, *shared.values())),
        *((own, *_asked_once(_header_folders, own / "opforge")) if own.is_dir() else ()),
    )
    state = _state(places)
    # a file that is written twice in one tick of the clock has the same times
    if state is not None and all(changed < began - SETTLED_NS for changed, _, _ in state):
        _known[source] = places, state, hashes
    return hashes


def _header_folders(folder: Path) -> tuple[Path, ...]:
    """A folder of headers with the folders in it; their names are in its own times."""
    return (folder, *sorted(place for place in folder.iterdir() if place.is_dir())) if folder.is_dir() else ()


SETTLED_NS = 2_000_000_000
"""How long ago a file must have been changed for its times to tell it from the next version; some file systems count
seconds.
"""

_State = tuple[tuple[int, int, int], ...]
_known: dict[Path, tuple[tuple[Path, ...], _State, SourceHashes]] = {}


def _asked_once(question: Callable[[Path], T], path: Path) -> T:
    """What a file says, asked again when it has changed: an operator's kernels reach the same shared files."""
    state, began = _state((path,)), time.time_ns()
    known = _answers.get((question, path))
    if known is not None and known[0] == state:
        answer: T = known[1]
        return answer
    answer = question(path)
    if state is not None and state[0][0] < began - SETTLED_NS:
        _answers[question, path] = state, answer
    return answer


_answers: dict[tuple[Callable[[Path], Any], Path], tuple[_State, Any]] = {}


def _state(places: Sequence[Path]) -> _State | None:
    """When each was last changed (which nobody can set back), its size and which file it is; None where one is gone."""
    try:
        return tuple((status.st_ctime_ns, status.st_size, status.st_ino) for status in map(os.stat, places))
    except OSError:
        return None


def files_of(source: Path) -> tuple[Path, ...]:
    """The files that the hash of a kernel covers: its own, then all shared code that it reaches."""
    return (source, *(modules_of(source) if source.suffix == ".py" else headers_of(source)).values())


def source_sha256(source: Path) -> str:
    """SHA-256, in hex, of a kernel file and of all shared code that it reaches; of a file that reaches none, its own.

    The names of the shared files go into it and their folders do not, so that it is the same in every installation.
    """
    code = code_of(source)
    if not code.shared:
        return code.own
    return hashlib.sha256(
        "\n".join([code.own, *(f"{name} {digest}" for name, digest in sorted(code.shared.items()))]).encode()
    ).hexdigest()
