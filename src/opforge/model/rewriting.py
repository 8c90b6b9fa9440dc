"""Python functions whose calls of PyTorch's functions go to others: the same code, with other globals under new names.

A function is read as byte code. `F.silu(x)`, `torch.nn.functional.silu(x)` and a name that was imported are one call
site each, whatever the alias. The rewritten function has the code of the original, so that tracebacks, line numbers and
torch.compile see what they saw; only names of globals differ, and what stands under the new names is a copy of the
module with other functions in it. What a site's function reaches by name (helpers, decorated functions, methods of
`self`, a table of attention functions) is rewritten too.
"""

from __future__ import annotations

import copy
import dis
import functools
import inspect
import itertools
import threading
import types
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

SITES = "_opforge_sites"
"""Under this name a class that stands in the place of another has the call sites of its methods."""
NAMES = 128
"""So many names of a function can be said in one byte of an instruction that reads a global."""
DEPTH = 4
"""So many helpers deep a call site is looked for: attention behind a table, a loss behind two functions."""
_LOAD = ("LOAD_ATTR", "LOAD_METHOD")
_NO_PART = frozenset({"CACHE", "EXTENDED_ARG", "PUSH_NULL", "NOP"})
_CHANGING = threading.RLock()


@dataclass(frozen=True, order=True)
class Site:
    """A call of one of PyTorch's functions in Python source.

    function   the name it has in opforge.ops.functional
    file       the source's file
    line       its line there
    where      the qualified name of the Python function that calls it
    of         the name in a table of attention functions by which it is reached; "" where it is in none
    """

    function: str
    file: str
    line: int
    where: str
    of: str = field(default="", compare=False)

    def __str__(self) -> str:
        return f"{self.function} at {self.file.rsplit('/', 1)[-1]}:{self.line}" if self.file else self.function


@dataclass(frozen=True)
class Rewritten:
    """What became of a Python function.

    function   the rewritten function; the original where it has no call site
    sites      the call sites that it reaches
    kept       sites that cannot be rewritten, each with the reason
    """

    function: Callable[..., Any]
    sites: tuple[Site, ...] = ()
    kept: tuple[tuple[Site, str], ...] = ()

    @property
    def differs(self) -> bool:
        return bool(self.sites)


class Rewriter:
    """Rewrites functions so that calls of `targets` go to what stands beside them.

    targets   PyTorch's function: (name, what is called in its place)
    label     a word of letters and digits that names under which copies of modules are kept begin with
    """

    def __init__(self, targets: Mapping[Callable[..., Any], tuple[str, Callable[..., Any]]], label: str) -> None:
        self._targets = {id(function): (function, *instead) for function, instead in targets.items()}
        self._label = label
        self._copies: dict[int, types.ModuleType] = {}
        self._tables: dict[int, tuple[Any, Any, tuple[Site, ...]]] = {}
        self._known: dict[tuple[Any, type | None], Rewritten] = {}

    def function(self, function: Callable[..., Any], owner: type | None = None) -> Rewritten:
        """`function` and what it reaches, rewritten. `owner`: the class of its `self`, whose methods count as reached.
        Nothing that exists is changed but this: modules get names of copies, which nothing else reads.
        """
        with _CHANGING:
            return self._rewritten(function, owner, DEPTH)

    def methods(self, owner: type, start: str = "forward") -> dict[str, Rewritten]:
        """The methods of a class that `start` reaches by `self`, as far as they have call sites."""
        found: dict[str, Rewritten] = {}
        asked, waiting = {start}, [start]
        while waiting:
            name = waiting.pop()
            method = inspect.getattr_static(owner, name, None)
            if not isinstance(method, types.FunctionType):
                continue
            made = self.function(method, owner)
            if made.sites or made.kept:
                found[name] = made
            for other in sorted(_reached_by_self(method) - asked):
                asked.add(other)
                waiting.append(other)
        return found

    def inherited(self, owner: type, start: str = "forward") -> dict[type, Rewritten]:
        """What `super()` reaches from a class's `start`, where that has call sites: by the class that defines it."""
        found: dict[type, Rewritten] = {}
        definers = [base for base in owner.__mro__ if isinstance(vars(base).get(start), types.FunctionType)]
        for here, above in itertools.pairwise(definers):
            method = inspect.unwrap(vars(here)[start])
            if "super" not in method.__code__.co_names:
                break
            made = self.function(vars(above)[start], owner)
            if made.differs:
                found[above] = made
        return found

    def _rewritten(self, function: Callable[..., Any], owner: type | None, depth: int) -> Rewritten:
        if not isinstance(function, types.FunctionType) or depth < 0:
            return Rewritten(function)
        key = (function, owner)
        if key not in self._known:
            # what reaches itself finds itself as it was
            self._known[key] = Rewritten(function)
            self._known[key] = self._made(function, owner, depth)
            if depth < DEPTH and not self._known[key].differs:
                # from a nearer start it may be found to reach more
                return self._known.pop(key)
        return self._known[key]

    def _made(self, function: types.FunctionType, owner: type | None, depth: int) -> Rewritten:
        sites: list[Site] = []
        kept: list[tuple[Site, str]] = []
        code, names = self._code(function.__code__, function.__globals__, sites, kept, depth)
        cells = []
        for cell in function.__closure__ or ():
            content = _content(cell)
            if id(content) in self._targets:
                _, name, instead = self._targets[id(content)]
                sites.append(Site(name, code.co_filename, code.co_firstlineno, function.__qualname__))
                cells.append(types.CellType(instead))
                continue
            inner = self._rewritten(content, owner, depth - 1)
            sites += inner.sites
            kept += inner.kept
            cells.append(types.CellType(inner.function) if inner.differs else cell)
        if not sites:
            return Rewritten(function, (), tuple(dict.fromkeys(kept)))
        for name, value in names.items():
            function.__globals__[name] = value
        made = types.FunctionType(
            code, function.__globals__, function.__name__, function.__defaults__, tuple(cells) or None
        )
        made.__kwdefaults__ = function.__kwdefaults__
        functools.update_wrapper(made, function)
        # update_wrapper says that it wraps the original: the original's own answer stands
        made.__dict__ = dict(function.__dict__)
        return Rewritten(made, tuple(dict.fromkeys(sites)), tuple(dict.fromkeys(kept)))

    def _code(
        self,
        code: types.CodeType,
        space: Mapping[str, Any],
        sites: list[Site],
        kept: list[tuple[Site, str]],
        depth: int,
    ) -> tuple[types.CodeType, dict[str, Any]]:
        """The code with other names, and what stands under them."""
        renamed: dict[str, Any] = {}
        for root, chain, line in _chains(code):
            if root not in space:
                continue
            instead, found = self._instead(space[root], chain, depth)
            if instead is None:
                continue
            found = tuple(
                Site(site.function, code.co_filename, line, code.co_qualname) if not site.file else site
                for site in found
            )
            if len(code.co_names) + len(renamed) >= NAMES and root not in renamed:
                kept += [(site, f"its function has more than {NAMES} names") for site in found]
                continue
            renamed[root] = instead
            sites += found
        new = {name: f"_opforge_{self._label}_{name}" for name in renamed}
        constants = list(code.co_consts)
        added = {new[name]: value for name, value in renamed.items()}
        for place, constant in enumerate(constants):
            if isinstance(constant, types.CodeType):
                constants[place], more = self._code(constant, space, sites, kept, depth)
                added |= more
        if not added:
            return code, {}
        steps = bytearray(code.co_code)
        named = list(code.co_names)
        for step in dis.get_instructions(code):
            if step.opname == "LOAD_GLOBAL" and step.argval in new:
                if new[step.argval] not in named:
                    named.append(new[step.argval])
                # the lowest bit says whether a NULL for a call is pushed too
                steps[step.offset + 1] = named.index(new[step.argval]) << 1 | (step.arg or 0) & 1
        return code.replace(co_code=bytes(steps), co_names=tuple(named), co_consts=tuple(constants)), added

    def _instead(self, value: Any, chain: tuple[str, ...], depth: int) -> tuple[Any, tuple[Site, ...]]:
        """What a global becomes, and the sites behind it; None where it stays. A site of this very place has no file
        yet."""
        if id(value) in self._targets:
            return self._targets[id(value)][2], self._sites(value)
        if isinstance(value, types.ModuleType):
            at: Any = value
            for place, attribute in enumerate(chain):
                at = getattr(at, attribute, None)
                if id(at) in self._targets:
                    return self._copy(value, chain[:place]), self._sites(at)
                if not isinstance(at, types.ModuleType):
                    break
            return None, ()
        if isinstance(value, types.FunctionType):
            if (value.__module__ or "").split(".")[0] in ("torch", "opforge"):
                return None, ()
            inner = self._rewritten(value, None, depth - 1)
            return (inner.function, inner.sites) if inner.differs else (None, ())
        if hasattr(type(value), "get_interface") and isinstance(getattr(value, "_local_mapping", None), dict):
            return self._table(value, depth)
        return None, ()

    def _sites(self, target: Any) -> tuple[Site, ...]:
        """Where a target is called: here, without a file yet; a module's class has its own places."""
        _, name, instead = self._targets[id(target)]
        return tuple(getattr(instead, SITES, ())) or (Site(name, "", 0, ""),)

    def _copy(self, module: types.ModuleType, chain: tuple[str, ...]) -> types.ModuleType:
        """The copy of a module in which targets are replaced, and along `chain` the modules in it."""
        made = self._copies.get(id(module))
        if made is None:
            made = self._copies[id(module)] = types.ModuleType(module.__name__, module.__doc__)
            vars(made).update(vars(module))
            for name, value in vars(module).items():
                if id(value) in self._targets:
                    vars(made)[name] = self._targets[id(value)][2]
        if chain:
            vars(made)[chain[0]] = self._copy(getattr(module, chain[0]), chain[1:])
        return made

    def _table(self, table: Any, depth: int) -> tuple[Any, tuple[Site, ...]]:
        """A table of attention functions by name (transformers), with those rewritten that have call sites."""
        if id(table) not in self._tables:
            made = copy.copy(table)
            inner = {name: self._rewritten(function, None, depth - 1) for name, function in table.items()}
            changed = {name: one for name, one in inner.items() if one.differs}
            made._local_mapping = {**table._local_mapping, **{name: one.function for name, one in changed.items()}}
            sites = tuple(replace(site, of=name) for name, one in changed.items() for site in one.sites)
            self._tables[id(table)] = (table, made, sites)
        _, made, sites = self._tables[id(table)]
        return (made, sites) if sites else (None, ())


def _content(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not filled yet
        return None


def _chains(code: types.CodeType) -> Iterator[tuple[str, tuple[str, ...], int]]:
    """(global, attributes after it, line) for each place where a global is read."""
    root, chain, line, at = "", [], code.co_firstlineno, code.co_firstlineno
    for step in dis.get_instructions(code):
        position = step.positions
        at = position.lineno if position is not None and position.lineno is not None else at
        if step.opname in _NO_PART:
            continue
        if root and step.opname in _LOAD:
            chain.append(step.argval)
            continue
        if root:
            yield root, tuple(chain), line
            root = ""
        if step.opname == "LOAD_GLOBAL":
            root, chain, line = step.argval, [], at
    if root:
        yield root, tuple(chain), line


def _reached_by_self(function: types.FunctionType) -> set[str]:
    """Attributes of `self` that a method, what it wraps and what is defined in it read."""
    found: set[str] = set()
    asked, functions, waiting = {function}, [function], [function.__code__]
    while functions:
        for cell in functions.pop().__closure__ or ():
            content = _content(cell)
            if isinstance(content, types.FunctionType) and content not in asked:
                asked.add(content)
                functions.append(content)
                waiting.append(content.__code__)
    while waiting:
        code = waiting.pop()
        waiting += [constant for constant in code.co_consts if isinstance(constant, types.CodeType)]
        mine = ""
        for step in dis.get_instructions(code):
            if step.opname in _NO_PART:
                continue
            if mine and step.opname in _LOAD:
                found.add(step.argval)
            reads = step.opname.startswith(("LOAD_FAST", "LOAD_DEREF"))
            mine = step.argval if reads and step.argval == "self" else ""
    return found
