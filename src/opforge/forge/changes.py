"""What kind of change an operator's folder went through: parameters only, interface, or logic; and which files belong
together.

parameters only   tunables: SPACE, LIMITS, DEFAULT, BLOCK_*, num_warps, num_stages, tuned configs
interface         the name, arguments, defaults, types or results of a function that others call, or op.py's tensors
logic             anything else but comments and docstrings
"""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from opforge.core.language.errors import UsageError, unknown
from opforge.forge.interface import FUNCTIONS, signature_of

PARAMETERS, INTERFACE, LOGIC = "parameters", "interface", "logic"
KINDS = (PARAMETERS, INTERFACE, LOGIC)
TUNABLE = re.compile(
    r"SPACE|LIMITS|DEFAULT|FLAGS|BLOCK\w*|TILE\w*|ROWS|COLS|GRID|WARPS|GROUP\w*|UNROLL\w*|num_warps|num_stages"
)
READ = (".py", ".cpp", ".cu", ".json")
FOUR = ("_triton.py", "_baseline.py", "_accuracy.py", "_performance.py")


@dataclass(frozen=True, kw_only=True)
class Change:
    """What changed between two states of a folder.

    kinds     of KINDS, in that order; none where only words changed, or nothing
    files     file -> its own kinds
    left_out  files that belong to this change and are as they were
    """

    kinds: tuple[str, ...]
    files: Mapping[str, tuple[str, ...]]
    left_out: tuple[str, ...]

    def beyond(self, claimed: Iterable[str]) -> tuple[str, ...]:
        """The kinds that were not claimed; changed parameters belong to every larger claim."""
        said = set(claimed)
        return tuple(kind for kind in self.kinds if kind not in said and not (kind == PARAMETERS and said))


def classify(before: Mapping[str, str], after: Mapping[str, str]) -> Change:
    """The Change between two states: texts by file name. Raises UsageError for a file that is no Python."""
    found = {
        name: kinds for name in sorted({*before, *after}) if (kinds := _kinds(name, before.get(name), after.get(name)))
    }
    kinds = tuple(kind for kind in KINDS if any(kind in one for one in found.values()))
    # a kernel that is written anew computes the same by its verdict; a new definition or interface concerns all files
    together = INTERFACE in kinds or any(
        LOGIC in one and (name == "op.py" or name.endswith("_baseline.py")) for name, one in found.items()
    )
    members = [name for name in after if name == "op.py" or name.endswith(FOUR)]
    left = tuple(sorted(name for name in members if name not in found)) if together else ()
    return Change(kinds=kinds, files=found, left_out=left)


def ensure_claimed(change: Change, claimed: Iterable[str]) -> None:
    """Raises UsageError where a change is more than was claimed, with the files that show it."""
    said = tuple(claimed)
    for one in said:
        if one not in KINDS:
            raise unknown("kind of change", one, KINDS)
    beyond = change.beyond(said)
    if beyond:
        files = [name for name, kinds in change.files.items() if set(kinds) & set(beyond)]
        raise UsageError(
            f"The change is claimed to be of {' and '.join(said)}, and {', '.join(files)} changed the {beyond[0]}. "
            f"Claim {' and '.join(change.kinds)}, or take that back."
        )


def state_of(folder: Path, revision: str = "") -> dict[str, str]:
    """The texts of a folder by path inside it, as they are or as a git revision has them. Raises UsageError."""
    if not revision:
        if not folder.is_dir():
            raise UsageError(f"{folder} is no folder. Name an operator's folder: opforge check-interface my_ops/gated")
        return {
            path.relative_to(folder).as_posix(): path.read_text(encoding="utf-8")
            for path in sorted(folder.rglob("*"))
            if path.suffix in READ and path.is_file()
        }
    names = _git(folder, "ls-tree", "-r", "--name-only", revision, ".").splitlines()
    return {name: _git(folder, "show", f"{revision}:./{name}") for name in names if Path(name).suffix in READ}


def _git(folder: Path, *words: str) -> str:
    done = subprocess.run(["git", "-C", str(folder), *words], capture_output=True, text=True, check=False)
    if done.returncode:
        raise UsageError(
            f"git {' '.join(words[:3])} failed in {folder}: {done.stderr.strip()[-200:]}. Name a folder, or a revision "
            "of the repository that the operator lies in."
        )
    return done.stdout


def _kinds(name: str, before: str | None, after: str | None) -> tuple[str, ...]:
    if before == after:
        return ()
    if name.endswith(".json"):
        return (PARAMETERS,) if name.startswith("tuned/") else (LOGIC,)
    if before is None or after is None:
        return (INTERFACE, LOGIC) if name.endswith(FUNCTIONS) else (LOGIC,)
    return _python(name, before, after) if name.endswith(".py") else _native(before, after)


def _python(name: str, before: str, after: str) -> tuple[str, ...]:
    trees = []
    for text in (before, after):
        try:
            trees.append(_without_words(ast.parse(text)))
        except SyntaxError as error:
            raise UsageError(f"{name}, line {error.lineno}: no Python: {error.msg}. Mend the file first.") from error
    old, new = trees
    if ast.dump(old) == ast.dump(new):
        return ()
    found = {INTERFACE} if _callable(name, old) != _callable(name, new) else set[str]()
    plain = [_Neutral().visit(tree) for tree in (_copied(old), _copied(new))]
    if name == "op.py":
        # tensors and parameters were compared above
        plain = [_without_tensors(tree) for tree in plain]
    else:
        plain = [_without_signatures(tree) for tree in plain]
    if ast.dump(plain[0]) != ast.dump(plain[1]):
        found.add(LOGIC)
    elif not found or _tunables(old) != _tunables(new):
        found.add(PARAMETERS)
    return tuple(kind for kind in KINDS if kind in found)


def _native(before: str, after: str) -> tuple[str, ...]:
    """C++ and CUDA: the metadata comment holds tunables, the exported function is the interface."""

    def parts(text: str) -> tuple[str, str, str]:
        metadata = "".join(re.findall(r"/\*\s*opforge\b.*?\*/", text, flags=re.DOTALL))
        code = re.sub(r"/\*.*?\*/|//[^\n]*", "", text, flags=re.DOTALL)
        exported = re.search(r"OPFORGE_EXPORT\(\s*run\s*,\s*(\w+)\s*\)", code)
        match = re.search(rf"\bvoid\s+{exported[1]}\s*\([^)]*\)", code) if exported else None
        signature = " ".join(match[0].split()) if match else ""
        return metadata, signature, " ".join(code.replace(match[0] if match else "\0", "").split())

    old, new = parts(before), parts(after)
    found = [kind for kind, a, b in zip(KINDS, old, new, strict=True) if a != b]
    return tuple(found)


class _Neutral(ast.NodeTransformer):
    """Takes the values out of what is tuned: assignments, keywords and defaults of tunable names."""

    def __init__(self) -> None:
        self.found: list[str] = []

    def visit_Assign(self, node: ast.Assign) -> ast.AST:
        names = [one.id for target in node.targets for one in ast.walk(target) if isinstance(one, ast.Name)]
        if names and all(TUNABLE.fullmatch(one) for one in names) and _plain(node.value):
            self.found.append(ast.dump(node))
            node.value = ast.Constant(0)
            return node
        return self.generic_visit(node)

    def visit_keyword(self, node: ast.keyword) -> ast.AST:
        if node.arg and TUNABLE.fullmatch(node.arg) and _plain(node.value):
            self.found.append(ast.dump(node))
            node.value = ast.Constant(0)
            return node
        return self.generic_visit(node)


def _plain(node: ast.expr) -> bool:
    """Whether it is a literal: numbers, texts, and mappings and sequences of them."""
    allowed = (ast.Constant, ast.Dict, ast.List, ast.Tuple, ast.Set, ast.Load, ast.UnaryOp, ast.USub)
    return all(isinstance(one, allowed) for one in ast.walk(node))


def _tunables(tree: ast.Module) -> list[str]:
    neutral = _Neutral()
    neutral.visit(_copied(tree))
    return neutral.found


def _copied(tree: ast.Module) -> ast.Module:
    return ast.parse(ast.unparse(tree))


def _without_words(tree: ast.Module) -> ast.Module:
    """Without docstrings; comments are gone with the text."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.FunctionDef | ast.ClassDef) and ast.get_docstring(node) is not None:
            node.body = node.body[1:] or [ast.Pass()]
    return tree


def _callable(name: str, tree: ast.Module) -> object:
    """What others call of a file: its public functions that are no kernels; of op.py its tensors and parameters."""
    if name == "op.py":
        return [
            ast.dump(keyword)
            for node in tree.body
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call)
            for keyword in node.value.keywords
            if keyword.arg in ("name", "inputs", "outputs", "scalars", "dtypes", "constraints")
        ]
    found = []
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and not node.decorator_list and not node.name.startswith("_"):
            one = signature_of(name, node)
            parameters = [entry for entry in one.parameters if not TUNABLE.fullmatch(entry[0])]
            found.append((one.name, parameters, one.returns, sorted(one.asserts)))
    return found


def _without_signatures(tree: ast.Module) -> ast.Module:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and not node.decorator_list:
            node.args, node.returns = ast.arguments([], [], None, [], [], None, []), None
            node.body = [one for one in node.body if not isinstance(one, ast.Assert)] or [ast.Pass()]
    return tree


def _without_tensors(tree: ast.Module) -> ast.Module:
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
            node.value.keywords = [
                one
                for one in node.value.keywords
                if one.arg not in ("name", "inputs", "outputs", "scalars", "dtypes", "constraints")
            ]
    return tree
