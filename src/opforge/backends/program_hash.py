"""What a kernel file says to the compiler, in one hash: without comments, layout, docstrings, and in Python without
what its entry points do not reach.

Two files with one program compile to one code, for every shape, dtype and target, as far as the toolchain is one. The
reverse does not hold: for that the compiled code is compared (backends.object_code, `opforge records adopt`).

A Python file is followed from its entry points (`run`, `launch`, `program`, …) through its own functions and those of
opforge's modules that it imports. The names of functions and of their local variables, the order of imports and
definitions, type hints of results and the place of a file do not count; names of parameters do, because calls may use
them. A C++ file is its text and that of the headers in quotes, in the order in which the compiler sees them, without
comments and white space.

What the file says of itself and the compiler or the launch depends on counts too: its default config, its flags, its
architecture.
"""

from __future__ import annotations

import ast
import builtins
import copy
import functools
import hashlib
import re
from collections.abc import Iterator
from pathlib import Path

from opforge.backends.shared_code import PACKAGE, code_of, file_of, include_of, package_of, source_sha256
from opforge.core.definition.implementation import Implementation

ENTRIES = ("run", "launch", "program", "variant", "UNALIGNED", "NOT_COMPILED")
"""What backends take from a Python file."""


def program_sha256(implementation: Implementation) -> str:
    """SHA-256, in hex, of an implementation's program. Raises SyntaxError for a Python file that is none."""
    # asked for by its text: whatever the file reaches is in code_of's hashes
    code = code_of(implementation.source)
    settings = (implementation.default.values, implementation.flags, implementation.arch)
    return _hashed(
        implementation.source,
        repr(settings),
        (code.own, *(f"{name} {digest}" for name, digest in sorted(code.shared.items()))),
    )


def is_of(implementation: Implementation, source: str, code: str) -> bool:
    """Whether a record with these hashes ("": unknown) is of an implementation as it is: of its text, else program."""
    return source == source_sha256(implementation.source) or (bool(code) and program_sha256(implementation) == code)


@functools.lru_cache(maxsize=1024)
def _hashed(source: Path, said: str, texts: tuple[str, ...]) -> str:
    text = "\n".join(Followed(source).of(ENTRIES)) if source.suffix == ".py" else native_text(source)
    return hashlib.sha256(f"{said}\n{text}".encode()).hexdigest()


def one_program(old: Implementation, now: Implementation) -> bool:
    """Whether two sources say the same to the compiler: by their programs; of C++ also where a header was split into
    several.
    """
    if program_sha256(old) == program_sha256(now):
        return True
    settings = [(item.default.values, item.flags, item.arch, item.source.suffix) for item in (old, now)]
    return (
        settings[0] == settings[1]
        and now.source.suffix != ".py"
        and joined_tokens(old.source) == joined_tokens(now.source)
    )


def host_text(source: Path) -> str:
    """Of a Triton file's program what runs on the host: it chooses grids, threads and configs."""
    return "\n".join(
        text for text in Followed(source).of(ENTRIES) if not any(f"Name('{mark}'" in text for mark in _JIT)
    )


_JIT = ("triton.jit", "triton.experimental.gluon.jit")

_LATER: dict[str, tuple[str, ...]] = {
    "FunctionDef": ("type_params",),
    "AsyncFunctionDef": ("type_params",),
    "ClassDef": ("type_params",),
}
"""Fields that Python 3.12 added to what 3.11 parses."""


def dumped(node: object) -> str:
    """A syntax tree as Python 3.12's `ast.dump` writes it without names of fields, whatever runs this: 3.11's lacks a
    field, 3.13's leaves empty lists out, and evidence taken under one would hold nothing under the other.

    >>> dumped(ast.parse("class C: pass").body[0])
    "ClassDef('C', [], [], [Pass()], [], [])"
    """
    if isinstance(node, list):
        return f"[{', '.join(map(dumped, node))}]"
    if not isinstance(node, ast.AST):
        return repr(node)
    kind, words, named = type(node), list[str](), False
    for name in dict.fromkeys((*kind._fields, *_LATER.get(kind.__name__, ()))):
        value = getattr(node, name, [] if name == "type_params" else None)
        if value is None and getattr(kind, name, ...) is None:
            # one that may be left out; what comes after it needs its name
            named = True
            continue
        words.append(f"{name}={dumped(value)}" if named else dumped(value))
    return f"{kind.__name__}({', '.join(words)})"


# --------------------------------------------------------------------------- C++

_TOKENS = re.compile(
    r"""(?P<raw>R"(?P<mark>[^()\s\\]*)\(.*?\)(?P=mark)")"""
    r"""|(?P<string>"(?:\\.|[^"\\\n])*")|(?P<char>'(?:\\.|[^'\\\n])*')"""
    r"""|(?P<comment>//[^\n]*|/\*.*?\*/)|(?P<space>\s+)|(?P<word>\w+)|(?P<other>.)""",
    re.DOTALL,
)
_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]+"([^"]+)"[^\n]*$', re.MULTILINE)


def native_text(source: Path) -> str:
    """The tokens of a C++ file with those of the headers in quotes in their places, each header once."""
    return " ".join(_native(source, include_of(package_of(source)), set()))


def joined_tokens(source: Path) -> list[str]:
    """The tokens of `native_text` without what a header that is split into several adds: guards, and a namespace that
    is closed and opened again at once.
    """
    joined_so_far = _without_guards(_native(source, include_of(package_of(source)), set()))
    while (joined := _namespaces_joined(joined_so_far)) != joined_so_far:
        joined_so_far = joined
    return joined_so_far


def _without_guards(given: list[str]) -> list[str]:
    """Each header is read once here, so that its guard says nothing: `#ifndef X_H_`, `#define X_H_` and the `#endif` of
    these.
    """
    kept: list[str] = []
    guards: list[bool] = []
    place = 0
    while place < len(given):
        if given[place : place + 2] in (["#", "if"], ["#", "ifdef"], ["#", "ifndef"]):
            name = given[place + 2]
            opened = ["#", "ifndef", name, "<end>", "#", "define", name, "<end>"]
            guards.append(name.endswith("_H_") and given[place : place + 8] == opened)
            if guards[-1]:
                place += 8
                continue
        elif given[place : place + 2] == ["#", "endif"] and guards and guards.pop():
            place += 3
            continue
        kept.append(given[place])
        place += 1
    return kept


def _namespaces_joined(given: list[str]) -> list[str]:
    kept: list[str] = []
    # of each brace that is open the namespace that it opens; None where it opens none
    opened: list[tuple[str, ...] | None] = []
    place = 0
    while place < len(given):
        token = given[place]
        name = _namespace_at(given, place)
        if name is not None:
            opened.append(name)
            kept += given[place : place + len(name) + 2]
            place += len(name) + 2
            continue
        if token == "{":
            opened.append(None)
        elif token == "}" and opened:
            closed = opened.pop()
            if closed is not None and _namespace_at(given, place + 1) == closed:
                opened.append(closed)
                place += len(closed) + 3
                continue
        kept.append(token)
        place += 1
    return kept


def _namespace_at(given: list[str], place: int) -> tuple[str, ...] | None:
    """The words of the namespace that is opened at a place; None where none is."""
    if given[place : place + 1] != ["namespace"]:
        return None
    end = next((end for end in range(place + 1, len(given)) if given[end] in ("{", ";", "=")), None)
    return None if end is None or given[end] != "{" else tuple(given[place + 1 : end])


def _native(path: Path, own: Path, seen: set[Path]) -> list[str]:
    text = path.read_text(encoding="utf-8").replace("\\\n", " ")
    found, place = list[str](), 0
    for include in _INCLUDE.finditer(text):
        found += _kept_tokens(text[place : include.start()])
        place = include.end()
        header = next((folder / include[1] for folder in (path.parent, own) if (folder / include[1]).is_file()), None)
        if header is None:
            found.append(include[0].strip())
        elif header.resolve() not in seen:
            seen.add(header.resolve())
            found += _native(header, own, seen)
    return [*found, *_kept_tokens(text[place:])]


@functools.lru_cache(maxsize=1024)
def _kept_tokens(text: str) -> tuple[str, ...]:
    return tuple(tokens(text))


def tokens(text: str) -> Iterator[str]:
    """The tokens of C++ without comments; a preprocessor's line ends with a mark of its own, because there the end of a
    line counts.

    >>> list(tokens("#define N 2  // two\\nfloat x = N;"))
    ['#', 'define', 'N', '2', '<end>', 'float', 'x', '=', 'N', ';']
    """
    directive = fresh = False
    for match in _TOKENS.finditer(text):
        kind, token = match.lastgroup, match[0]
        if kind == "mark":
            kind = "raw"
        if kind == "comment" and "\n" not in token:
            continue
        if kind in ("space", "comment"):
            if directive and "\n" in token and kind == "space":
                directive = False
                yield "<end>"
            fresh = fresh or "\n" in token
            continue
        if token == "#" and not directive:
            directive = True
        elif directive and token == "(" and text[match.start() - 1] not in " \t":
            # `f(x)` after #define is a macro with parameters, `f (x)` is none
            token = "<joined>("
        yield token


# --------------------------------------------------------------------------- Python


class Followed:
    """A Python file and the modules of opforge that it reaches, followed from names of it."""

    def __init__(self, source: Path) -> None:
        self.source = source
        self.packages = tuple(dict.fromkeys((package_of(source), PACKAGE)))
        self.modules: dict[Path, _Module] = {}
        self.numbers: dict[tuple[Path, str], int] = {}
        self.pending: list[tuple[_Module, str]] = []

    def of(self, names: tuple[str, ...]) -> Iterator[str]:
        """A text for each definition that is reached, in the order of reaching, and for each statement that a reached
        module executes.
        """
        first = self._module(self.source)
        for name in names:
            if name in first.definitions:
                yield f"entry {name} is {self._number(first, name)}"
        told: set[Path] = set()
        while self.pending:
            module, name = self.pending.pop(0)
            if module.path not in told:
                told.add(module.path)
                for statement in module.statements:
                    yield self._text(module, statement)
            for node in module.definitions[name]:
                yield f"{self.numbers[module.path, name]}: {self._text(module, node)}"

    def _module(self, path: Path) -> _Module:
        if path not in self.modules:
            self.modules[path] = _Module(path)
        return self.modules[path]

    def _number(self, module: _Module, name: str) -> int:
        """The number by which a definition is called, given when it is first reached."""
        place = (module.path, name)
        if place not in self.numbers:
            self.numbers[place] = len(self.numbers)
            self.pending.append((module, name))
        return self.numbers[place]

    def meaning(self, module: _Module, name: str) -> str:
        """What a global name of a module stands for: a definition by its number, a module or a name from outside, a
        builtin.
        """
        if name in module.definitions:
            return f"<{self._number(module, name)}>"
        if name in module.imports:
            return self._imported(module.imports[name])
        return f"builtin {name}" if hasattr(builtins, name) else f"unknown {name}"

    def _imported(self, dotted: str) -> str:
        package, _, _ = dotted.partition(".")
        if package != "opforge":
            return dotted
        parent, _, last = dotted.rpartition(".")
        if self._file(dotted) is not None:
            return f"module {dotted}"
        path = self._file(parent)
        if path is None:
            return dotted
        there = self._module(path)
        # a module may pass on what it imported
        return self.meaning(there, last) if last in there.definitions or last in there.imports else f"unknown {dotted}"

    def member(self, dotted: str, name: str) -> str | None:
        """What `name` of a module of opforge stands for; None where it is no such module."""
        path = self._file(dotted)
        return None if path is None else self._imported(f"{dotted}.{name}")

    def _file(self, dotted: str) -> Path | None:
        return file_of(dotted, self.packages)

    def _text(self, module: _Module, node: ast.stmt) -> str:
        bound = _Bound(node)
        return dumped(_Plain(self, module, bound).visit(copy.deepcopy(node)))


class _Module:
    """The definitions, imports and other statements of a module. A name may be defined several times."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.definitions: dict[str, list[ast.stmt]] = {}
        self.imports: dict[str, str] = {}
        self.statements: list[ast.stmt] = []
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            self.take(node)

    def take(self, node: ast.stmt) -> None:
        """Note what a statement defines or imports."""
        match node:
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name) | ast.AsyncFunctionDef(name=name):
                self.definitions.setdefault(name, []).append(node)
            case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
                self.definitions.setdefault(name, []).append(node)
            case ast.Import(names=names):
                for alias in names:
                    self.imports[alias.asname or alias.name.partition(".")[0]] = (
                        alias.name if alias.asname else alias.name.partition(".")[0]
                    )
            case ast.ImportFrom(module="__future__"):
                pass
            case ast.ImportFrom(module=str(module), names=names, level=0):
                self.imports |= {alias.asname or alias.name: f"{module}.{alias.name}" for alias in names}
            case ast.Expr(value=ast.Constant()):
                pass
            case _:
                self.statements.append(node)


class _Bound(ast.NodeVisitor):
    """The names that a definition binds inside itself, and those that are parameters of something in it."""

    def __init__(self, node: ast.stmt) -> None:
        self.local: dict[str, None] = {}
        self.parameters: set[str] = set()
        self.outside: set[str] = set()
        self.own = getattr(node, "name", "")
        if not isinstance(node, ast.Assign | ast.AnnAssign):
            self.visit(node)
        for name in (*self.outside, self.own):
            self.local.pop(name, None)

    def visit_Name(self, node: ast.Name) -> None:
        if isinstance(node.ctx, ast.Store | ast.Del):
            self.local[node.id] = None

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        self.local[node.name] = None
        self.generic_visit(node)

    def visit_arg(self, node: ast.arg) -> None:
        self.parameters.add(node.arg)
        self.generic_visit(node)

    def visit_Global(self, node: ast.Global) -> None:
        self.outside.update(node.names)

    def visit_ExceptHandler(self, node: ast.ExceptHandler) -> None:
        if node.name:
            self.local[node.name] = None
        self.generic_visit(node)


class _Plain(ast.NodeTransformer):
    """Takes out what does not count, and puts numbers in the place of names."""

    def __init__(self, followed: Followed, module: _Module, bound: _Bound) -> None:
        self.followed, self.module, self.bound = followed, module, bound
        self.locals: dict[str, str] = {}

    def _name(self, name: str, *, load: bool = True) -> str:
        if name in self.bound.parameters:
            return f"parameter {name}"
        if name in self.bound.local:
            if load and name in self.module.definitions:
                # bound in one of the functions inside, and perhaps the module's in another: both count
                self.followed.meaning(self.module, name)
            return self.locals.setdefault(name, f"local {len(self.locals)}")
        if name == self.bound.own:
            return "itself"
        return self.followed.meaning(self.module, name)

    def visit_Name(self, node: ast.Name) -> ast.AST:
        return ast.Name(id=self._name(node.id, load=isinstance(node.ctx, ast.Load)), ctx=node.ctx)

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        value = self.visit(node.value)
        if isinstance(value, ast.Name) and value.id.startswith("module opforge"):
            member = self.followed.member(value.id.removeprefix("module "), node.attr)
            if member is not None:
                return ast.Name(id=member, ctx=node.ctx)
        if isinstance(value, ast.Name) and " " not in value.id and not value.id.startswith("<"):
            # `triton.language.exp` and `tl.exp` are one
            return ast.Name(id=f"{value.id}.{node.attr}", ctx=node.ctx)
        return ast.Attribute(value=value, attr=node.attr, ctx=node.ctx)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        node.name = "itself" if node.name == self.bound.own else self._name(node.name, load=False)
        node.returns = None
        node.body = _without_docstring(node.body)
        return self.generic_visit(node)

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        node.body = _without_docstring(node.body)
        return self.generic_visit(node)

    def visit_Import(self, node: ast.Import) -> ast.AST:
        self.module.take(node)
        return ast.Pass()

    def visit_ImportFrom(self, node: ast.ImportFrom) -> ast.AST:
        self.module.take(node)
        return ast.Pass()


def _without_docstring(body: list[ast.stmt]) -> list[ast.stmt]:
    if (
        body
        and isinstance(body[0], ast.Expr)
        and isinstance(body[0].value, ast.Constant)
        and isinstance(body[0].value.value, str)
    ):
        return body[1:] or [ast.Pass()]
    return body
