"""Whether the files of an operator's folder agree: names, arity, types, defaults, returns, dtypes, devices and asserts,
read from their text by AST and never run.

A folder has a definition (`op.py`), functions of tensors (NAME_triton.py, NAME_baseline.py), kernels, and files that
call the functions (NAME_accuracy.py, NAME_performance.py). Folders of the four files alone are checked as well.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from opforge.core.language.errors import UsageError

FUNCTIONS, CALLERS = ("_triton.py", "_baseline.py"), ("_accuracy.py", "_performance.py")
_NUMBERS = {"float", "double", "bool", "int", "long", "int32_t", "int64_t"}
"""Types of arguments that are no tensors."""
_EXPORT = re.compile(r"OPFORGE_EXPORT\(\s*run\s*,\s*(\w+)\s*\)")


@dataclass(frozen=True, kw_only=True)
class Disagreement:
    """One thing that files say differently: where, what, and what to do."""

    file: str
    line: int
    what: str
    fix: str


@dataclass(frozen=True, kw_only=True)
class Signature:
    """A function as its text has it.

    parameters   (name, annotation, default), "" where there is none, in order
    keywords     how many of the last ones are given by name alone
    asserts      conditions, in the words of ast.unparse
    """

    file: str
    line: int
    name: str
    parameters: tuple[tuple[str, str, str], ...]
    keywords: int
    returns: str
    asserts: frozenset[str]

    @property
    def required(self) -> int:
        return sum(default == "" for _, _, default in self.parameters)


@dataclass(frozen=True, kw_only=True)
class Declaration:
    """What op.py declares: names in order, parameters with the text of their defaults, dtypes (none: not said)."""

    line: int
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    scalars: tuple[tuple[str, str], ...]
    dtypes: tuple[str, ...]


def check_folder(folder: Path) -> list[Disagreement]:
    """What the files of a folder disagree on. Raises UsageError where there is nothing to check."""
    if not folder.is_dir():
        raise UsageError(f"{folder} is no folder. Name an operator's folder: opforge check-interface my_ops/gated")
    files = {
        path.name: path.read_text(encoding="utf-8")
        for path in sorted(folder.iterdir())
        if path.suffix in (".py", ".cpp", ".cu") and path.is_file()
    }
    return check_files(files, folder.name)


def check_files(files: Mapping[str, str], name: str) -> list[Disagreement]:
    """The same for texts by file name."""
    trees: dict[str, ast.Module] = {}
    found: list[Disagreement] = []
    for file, text in files.items():
        if file.endswith(".py"):
            try:
                trees[file] = ast.parse(text)
            except SyntaxError as error:
                fix = "Mend the file; nothing of it was compared."
                found.append(Disagreement(file=file, line=error.lineno or 1, what=f"no Python: {error.msg}", fix=fix))
    stem = _stem(files, name)
    if not any(file == "op.py" or file.endswith((*FUNCTIONS, *CALLERS)) for file in files):
        raise UsageError(
            f"There is neither an op.py nor a {stem}_triton.py here. Name an operator's folder, or make one: "
            f"opforge new {stem}"
        )
    for file, tree in trees.items():
        found += _twice(file, tree)
    holders = [f"{stem}{ending}" for ending in FUNCTIONS if f"{stem}{ending}" in trees]
    functions = [one for file in holders if (one := _function(file, trees[file], stem)) is not None]
    present = {one.file for one in functions}
    for file in holders:
        if file not in present:
            fix = f"Name it as the other files do: def {stem}(...)"
            found.append(Disagreement(file=file, line=1, what=f"there is no function {stem}", fix=fix))
    declared = _declared(trees["op.py"]) if "op.py" in trees else None
    if declared is not None:
        for function in functions:
            found += _against(function, declared)
        found += _kernels(files, trees, declared)
    for other in functions[1:]:
        found += _between(functions[0], other)
    for caller in (f"{stem}{ending}" for ending in CALLERS):
        if caller in trees:
            found += _calls(caller, trees, stem, functions)
    return found


def _stem(files: Mapping[str, str], name: str) -> str:
    """What the four files' names begin with: the folder's name, or what they have in common."""
    stems = {file.removesuffix(ending) for file in files for ending in FUNCTIONS if file.endswith(ending)}
    return name if not stems or name in stems else min(stems)


def _twice(file: str, tree: ast.Module) -> Iterator[Disagreement]:
    """Functions of one name in one file: the later takes the earlier's place, a wrapper its kernel's."""
    first: dict[str, int] = {}
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            if node.name in first:
                yield Disagreement(
                    file=file,
                    line=node.lineno,
                    what=f"{node.name} is defined twice: here it takes the place of the one at line {first[node.name]}",
                    fix=f"Rename one, e.g. the kernel: {node.name}_kernel",
                )
            first.setdefault(node.name, node.lineno)


def signature_of(file: str, node: ast.FunctionDef) -> Signature:
    """The Signature of a function's node."""
    given = node.args
    positional = [*given.posonlyargs, *given.args]
    defaults = [None] * (len(positional) - len(given.defaults)) + list(given.defaults)
    pairs = [*zip(positional, defaults, strict=True), *zip(given.kwonlyargs, given.kw_defaults, strict=True)]
    return Signature(
        file=file,
        line=node.lineno,
        name=node.name,
        parameters=tuple(
            (one.arg, _text(one.annotation), "" if default is None else ast.unparse(default)) for one, default in pairs
        ),
        keywords=len(given.kwonlyargs),
        returns=_text(node.returns),
        asserts=frozenset(ast.unparse(one.test) for one in ast.walk(node) if isinstance(one, ast.Assert)),
    )


def _text(node: ast.expr | None) -> str:
    """An annotation, whichever way torch's names are imported."""
    return "" if node is None else ast.unparse(node).replace("torch.", "")


def _function(file: str, tree: ast.Module, name: str) -> Signature | None:
    # the last one of that name is the one that callers get
    nodes = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == name]
    return signature_of(file, nodes[-1]) if nodes else None


def _declared(tree: ast.Module) -> Declaration | None:
    """What `operator = Operator(...)` says in literals; None also where its tensors or parameters are not all there."""
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
            fields = {keyword.arg: keyword.value for keyword in node.value.keywords if keyword.arg}
            if "inputs" in fields and "outputs" in fields:
                if any(_elsewhere(fields.get(name)) for name in ("inputs", "outputs", "scalars")):
                    return None
                scalars = [
                    ({key.arg: key.value for key in one.keywords}) for one in _items(fields.get("scalars"), "Scalar")
                ]
                return Declaration(
                    line=node.lineno,
                    inputs=tuple(_named(one) for one in _items(fields["inputs"], "TensorSpec")),
                    outputs=tuple(_named(one) for one in _items(fields["outputs"], "TensorSpec")),
                    scalars=tuple(
                        (str(ast.literal_eval(one["name"])), ast.unparse(one["default"]))
                        for one in scalars
                        if "name" in one and "default" in one
                    ),
                    dtypes=_literal(fields.get("dtypes")),
                )
    return None


def _items(node: ast.expr | None, called: str) -> list[ast.Call]:
    elements = node.elts if isinstance(node, ast.Tuple | ast.List) else []
    return [
        one
        for one in elements
        if isinstance(one, ast.Call) and isinstance(one.func, ast.Name) and one.func.id == called
    ]


def _elsewhere(node: ast.expr | None) -> bool:
    """Whether some of its elements come from another file: `*ANGLES`."""
    return isinstance(node, ast.Tuple | ast.List) and any(isinstance(one, ast.Starred) for one in node.elts)


def _named(call: ast.Call) -> str:
    return next((str(ast.literal_eval(one.value)) for one in call.keywords if one.arg == "name"), "")


def _literal(node: ast.expr | None) -> tuple[str, ...]:
    if not isinstance(node, ast.Tuple | ast.List):
        return ()
    return tuple(str(one.value) for one in node.elts if isinstance(one, ast.Constant))


def _against(function: Signature, declared: Declaration) -> Iterator[Disagreement]:
    def wrong(what: str, fix: str) -> Disagreement:
        return Disagreement(file=function.file, line=function.line, what=f"{function.name}: {what}", fix=fix)

    names = [name for name, _, _ in function.parameters]
    wanted = [*declared.inputs, *(name for name, _ in declared.scalars)]
    if len(names) != len(wanted):
        yield wrong(f"{len(names)} arguments, op.py has {len(wanted)}", f"Take: {', '.join(wanted)}")
    elif names != wanted:
        yield wrong(f"arguments {', '.join(names)}, op.py has {', '.join(wanted)}", "Let names and order agree")
    defaults = {name: default for name, _, default in function.parameters}
    for name, value in declared.scalars:
        if name in defaults and not _same(defaults[name], value):
            said = f"default {defaults[name]}" if defaults[name] else "no default"
            yield wrong(f"{name} has {said}, op.py {value}", f"Write: {name}={value}")
    for name, annotation, _ in function.parameters:
        if name in declared.inputs and annotation not in ("Tensor", ""):
            yield wrong(f"{name} is a {annotation}, in op.py a tensor", f"Write: {name}: torch.Tensor")
    count = len(declared.outputs)
    returned = function.returns.count("Tensor")
    if function.returns and returned != count:
        yield wrong(
            f"it returns {function.returns}, op.py has {count} outputs", "Let the annotation say as many tensors"
        )


def _same(a: str, b: str) -> bool:
    try:
        return bool(ast.literal_eval(a) == ast.literal_eval(b))
    except (ValueError, SyntaxError):
        return a == b


def _between(a: Signature, b: Signature) -> Iterator[Disagreement]:
    """What two functions that shall be one interface say differently."""

    def wrong(what: str, fix: str) -> Disagreement:
        return Disagreement(file=b.file, line=b.line, what=f"{b.name}: {what}", fix=fix)

    if len(a.parameters) != len(b.parameters):
        yield wrong(f"{len(b.parameters)} arguments, {a.file} has {len(a.parameters)}", "Change both files together")
        return
    for (name, kind, default), (other, other_kind, other_default) in zip(a.parameters, b.parameters, strict=True):
        if name != other:
            yield wrong(f"the argument {other} is called {name} in {a.file}", "Give it one name")
        elif kind != other_kind:
            yield wrong(f"{name} is a {other_kind or 'thing of no type'}, in {a.file} a {kind}", "Give it one type")
        elif not _same(default, other_default):
            yield wrong(
                f"{name} has the default {other_default or 'none'}, in {a.file} {default or 'none'}", "Let them agree"
            )
    if a.keywords != b.keywords:
        yield wrong(f"{b.keywords} arguments go by name alone, in {a.file} {a.keywords}", "Let them agree")
    if a.returns != b.returns:
        yield wrong(f"it returns {b.returns or 'nothing that is said'}, in {a.file} {a.returns}", "Let them agree")
    for condition in sorted(a.asserts ^ b.asserts):
        here, there = (b.file, a.file) if condition in b.asserts else (a.file, b.file)
        yield wrong(f"`assert {condition}` stands in {here} and not in {there}", "Ask for the same in both")


def _kernels(
    files: Mapping[str, str], trees: Mapping[str, ast.Module], declared: Declaration
) -> Iterator[Disagreement]:
    """The entry points of implementations: run, launch, program, and what C++ and CUDA export."""
    scalars = [name for name, _ in declared.scalars]
    tensors = [*declared.inputs, *declared.outputs]
    for file, tree in trees.items():
        assigned = (node for node in tree.body if isinstance(node, ast.Assign) and _assigns(node, "DTYPES"))
        dtypes = next((_literal(node.value) for node in assigned), ())
        strange = [one for one in dtypes if declared.dtypes and one not in declared.dtypes]
        if strange:
            what = f"DTYPES has {strange[0]}, which op.py does not have"
            yield Disagreement(file=file, line=1, what=what, fix=f"Known there: {', '.join(declared.dtypes)}")
        if file.startswith(("torch_", "library_")):
            # what a forward pass leaves for a gradient, keep() makes, and run() takes as well
            entry = "keep" if _function(file, tree, "keep") else "run"
            wanted = [*declared.inputs, *scalars]
        elif file.startswith("triton_"):
            entry, wanted = "launch", [*tensors, *scalars]
        else:
            continue
        signature = _function(file, tree, entry)
        if signature is None:
            yield Disagreement(
                file=file, line=1, what=f"there is no function {entry}", fix=f"{entry} is what is called"
            )
            continue
        names = [name for name, _, _ in signature.parameters]
        if names[: len(wanted)] != wanted:
            yield Disagreement(
                file=file,
                line=signature.line,
                what=f"{entry}({', '.join(names[: len(wanted)])} …), by op.py it is called with {', '.join(wanted)}",
                fix="Take inputs, outputs where it writes them, and parameters, in the order of op.py",
            )
    for file, text in files.items():
        exported = _EXPORT.search(text) if file.endswith((".cpp", ".cu")) else None
        if exported is None:
            continue
        match = re.search(rf"\bvoid\s+{exported[1]}\s*\(([^)]*)\)", text)
        if match is None:
            continue
        # an argument that is not used has a type alone
        words = [one.split() for one in match[1].split(",") if one.strip()]
        names = [one[-1].lstrip("&*") if len(one) > 1 else "" for one in words]
        wanted = [*tensors, *scalars]
        # a name of its own is no disagreement: arguments are told by their places. One of op.py at another place is
        moved = any(a != b and a in wanted for a, b in zip(names, wanted, strict=False))
        kinds = ["TensorView" in " ".join(one) or not set(one) & _NUMBERS for one in words]
        other = any(kind != (place < len(tensors)) for place, kind in enumerate(kinds[: len(wanted)]))
        if len(names) < len(wanted) or moved or other:
            yield Disagreement(
                file=file,
                line=text[: match.start()].count("\n") + 1,
                what=f"{exported[1]}({', '.join(names)}), by op.py it is called with {', '.join(wanted)}",
                fix="Take inputs, outputs and parameters in the order of op.py",
            )


def _assigns(node: ast.Assign, name: str) -> bool:
    return any(isinstance(one, ast.Name) and one.id == name for one in node.targets)


def _calls(file: str, trees: Mapping[str, ast.Module], stem: str, functions: list[Signature]) -> Iterator[Disagreement]:
    """Imports and calls of the functions in a file that uses them, and the devices it puts tensors on."""
    by_file = {one.file.removesuffix(".py"): one for one in functions}
    called: dict[str, Signature] = {}
    for node in ast.walk(trees[file]):
        if isinstance(node, ast.ImportFrom) and node.module in by_file:
            for alias in node.names:
                names = {one.name for one in trees[f"{node.module}.py"].body if isinstance(one, ast.FunctionDef)} | {
                    one.id for one in ast.walk(trees[f"{node.module}.py"]) if isinstance(one, ast.Name)
                }
                if alias.name not in names:
                    what = f"{node.module}.py has no {alias.name}"
                    yield Disagreement(file=file, line=node.lineno, what=what, fix="Import what is there")
                elif alias.name == stem:
                    called[alias.asname or alias.name] = by_file[node.module]
        else:
            if not isinstance(node, ast.Import | ast.ImportFrom):
                continue
            plain = isinstance(node, ast.Import)
            for module in [alias.name for alias in node.names] if plain else [getattr(node, "module", None) or ""]:
                if module.endswith(("_triton", "_baseline")) and f"{module}.py" not in trees:
                    what = f"{module}.py is imported and is not here"
                    fix = f"Here is: {', '.join(by_file) or 'none'}"
                    yield Disagreement(file=file, line=node.lineno, what=what, fix=fix)
    puts = set[str]()
    for node in ast.walk(trees[file]):
        if not isinstance(node, ast.Call):
            continue
        if isinstance(node.func, ast.Attribute) and node.func.attr in ("npu", "cuda") and not node.args:
            puts.add(node.func.attr)
        name = node.func.id if isinstance(node.func, ast.Name) else ""
        if name in called and not any(isinstance(one, ast.Starred) for one in node.args):
            signature, count = called[name], len(node.args) + len(node.keywords)
            if not signature.required <= count <= len(signature.parameters):
                yield Disagreement(
                    file=file,
                    line=node.lineno,
                    what=f"{name} is called with {count} arguments, {signature.file} takes "
                    f"{', '.join(one for one, _, _ in signature.parameters)}",
                    fix="Change both files together",
                )
    for signature in functions:
        asked = {kind for kind in ("npu", "cuda") if any(f"is_{kind}" in one for one in signature.asserts)}
        if puts and asked and not puts & asked:
            what = f"tensors are put on {', '.join(sorted(puts))}, {signature.file} asks for {', '.join(sorted(asked))}"
            yield Disagreement(file=file, line=1, what=what, fix="Let one device be asked for")
