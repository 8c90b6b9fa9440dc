"""Which campaigns a landing asks: those nearest to what it changed, and of the others some in turn.

The graph joins files by what they use: imports, lazy ones too; headers that a kernel includes; an operator's folder or
a script that a test names. A test is a node of its own, with what its function and its fixtures use. The distance of a
test is the number of steps to the nearest changed file.

Two thirds of the seconds go to the nearest campaigns. Of tests that are as near, one whose file is named like a changed
file comes first, then one that reaches less: it asks about little else. A third of the others follows, drawn by the
commit, as long as there are seconds. How long a test takes stands in tests/campaign_seconds.json; what earlier runs on
this machine took counts more.
"""

from __future__ import annotations

import ast
import hashlib
import json
import os
import re
import subprocess
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SECONDS = 300.0
"""Of tests, both processes together: two and a half minutes on two cores."""
UNKNOWN_S = 10.0
"""A campaign that no run has recorded."""
TURNS = 3
MOST_COMMITS = 60
"""Where nothing says what was landed before: as many as a large landing has."""
BACKENDS = {
    "torch": "torch_eager", "library": "library", "triton": "triton_lang", "tilelang": "tilelang_lang",
    "cuda": "cuda", "cpp": "cpp",
}  # fmt: skip
Graph = dict[str, set[str]]


def git(root: Path, *words: str) -> str | None:
    """What git says; None where it cannot."""
    try:
        done = subprocess.run(["git", "-C", str(root), *words], capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None


def kept_folder(environ: Mapping[str, str] = os.environ) -> Path:
    """What outlives a checkout, as the Makefile has it."""
    cache = environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(environ.get("OPFORGE_KEPT") or Path(cache) / "opforge-tests")


def base_of_change(root: Path, environ: Mapping[str, str] = os.environ) -> str | None:
    """The commit that was landed last: $OPFORGE_CHANGE_BASE, else the last that passed on this machine, else the first
    parent of the commits of HEAD's last day, sixty at most. None where git does not know.
    """
    passed = kept_folder(environ) / "passed"
    for known in (environ.get("OPFORGE_CHANGE_BASE", ""), passed.read_text().strip() if passed.exists() else ""):
        ancestor = known and git(root, "merge-base", "--is-ancestor", known, "HEAD") is not None
        if ancestor and (git(root, "rev-parse", known) or "") != (git(root, "rev-parse", "HEAD") or ""):
            return known
    newest = git(root, "log", "-1", "--format=%ct")
    if newest is None:
        return None
    since = f"--since={int(newest) - 86_400}"
    commits = (git(root, "rev-list", "--first-parent", f"--max-count={MOST_COMMITS}", since, "HEAD") or "").split()
    before = git(root, "rev-parse", "--verify", "--quiet", f"{commits[-1]}^") if commits else None
    return before.strip() if before else None


def changed_files(root: Path, base: str) -> set[str]:
    """What differs from a commit, also where it is not committed. A file that only moved has not changed."""
    said = git(root, "diff", "--name-status", "-M", base) or ""
    rows = [line.split("\t") for line in said.splitlines()]
    return {row[-1] for row in rows if row[0] != "R100"}


def changed_tests(root: Path, base: str, file: str) -> set[str]:
    """The functions and values of a test file that are not what they were."""

    def parts(text: str) -> dict[str, str]:
        return {name: ast.dump(node) for node in ast.parse(text).body for name in _names_of(node)}

    before, now = parts(git(root, "show", f"{base}:{file}") or ""), parts((root / file).read_text(encoding="utf-8"))
    return {f"{file}::{name}" for name, body in now.items() if before.get(name) != body}


def _names_of(node: ast.stmt) -> list[str]:
    """What a statement of a module defines."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return [node.name]
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    return [name.id for target in targets for name in ast.walk(target) if isinstance(name, ast.Name)]


class Drawing:
    """The graph of one checkout, being drawn."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.graph: Graph = defaultdict(set)
        self.package = root / "src" / "opforge"
        self.operators = {path.parent.name: path.parent for path in self.package.glob("ops/*/*/op.py")}
        self.verbs = {path.stem: self.name(path) for path in self.package.glob("cli/*.py")}
        self.helpers = {path.stem: self.name(path) for path in root.glob("tests/*.py")}
        self.headers = {path.name: self.name(path) for path in self.package.glob("device/include/**/*.h")}
        self.scripts = {path.name: self.name(path) for path in root.glob("scripts/*.*")}
        self.passed_on: dict[Path, dict[str, str]] = {}

    def name(self, path: Path) -> str:
        return path.relative_to(self.root).as_posix()

    def module(self, dotted: str) -> str | None:
        """The file behind a dotted name: of a name that a package passes on, the file that has it."""
        parts = dotted.split(".")
        if parts[0] in self.helpers and len(parts) <= 2:
            return self.helpers[parts[0]]
        if f"{parts[0]}.py" in self.scripts and len(parts) <= 2:
            return self.scripts[f"{parts[0]}.py"]
        if parts[0] not in ("opforge", "tests", "scripts"):
            return None
        place = self.package if parts[0] == "opforge" else self.root / parts[0]
        for at, part in enumerate(parts[1:], start=1):
            if (place / part).is_dir():
                place = place / part
                continue
            if (place / f"{part}.py").is_file():
                return self.name(place / f"{part}.py")
            further = self._passed_on(place).get(part)
            return self.module(further) if further and at == len(parts) - 1 else self._package(place)
        return self._package(place)

    def _package(self, place: Path) -> str | None:
        found = place / "__init__.py"
        return self.name(found) if found.is_file() else None

    def _passed_on(self, place: Path) -> dict[str, str]:
        if place not in self.passed_on:
            found = self.passed_on[place] = {}
            if (place / "__init__.py").is_file():
                for node in ast.parse((place / "__init__.py").read_text(encoding="utf-8")).body:
                    if isinstance(node, ast.ImportFrom) and node.module:
                        found |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
        return self.passed_on[place]

    def imported(self, node: ast.AST) -> dict[str, str]:
        """Local name -> file, for the import statements in a piece of code."""
        found: dict[str, str | None] = {}
        for part in _imports(node):
            if isinstance(part, ast.Import):
                found |= {(alias.asname or alias.name).split(".")[0]: self.module(alias.name) for alias in part.names}
            elif part.module and part.level == 0:
                for alias in part.names:
                    file = self.module(f"{part.module}.{alias.name}")
                    borrowed = file and re.fullmatch(r"tests/test_\w+\.py", file)
                    found[alias.asname or alias.name] = f"{file}::{alias.name}" if borrowed else file
        return {name: file for name, file in found.items() if file}

    def named(self, node: ast.AST) -> set[str]:
        """What strings and calls name: an operator, a script, a header, a verb, modules in code that is run."""
        found = set()
        for part in ast.walk(node):
            if isinstance(part, ast.Attribute) and part.attr in ("names", "operators"):
                found.add("every operator")
            if not isinstance(part, ast.Constant) or not isinstance(part.value, str):
                continue
            text = part.value
            found |= {f"operator {word}" for word in re.findall(r"\w+", text[:400]) if word in self.operators}
            found |= {self.verbs[text]} if text in self.verbs else set()
            last = text.rsplit("/", 1)[-1]
            found |= {known[last] for known in (self.scripts, self.headers) if last in known}
            found |= {file for dotted in re.findall(r"opforge(?:\.\w+)+", text) if (file := self.module(dotted))}
        return found

    def source(self, path: Path) -> None:
        """A file that is no test, with everything that it uses anywhere."""
        text = path.read_text(encoding="utf-8", errors="replace")
        used = self.graph[self.name(path)]
        if path.suffix == ".py":
            tree = ast.parse(text)
            used |= set(self.imported(tree).values())
            used |= self.named(tree) if path.is_relative_to(self.root / "tests") else set()
        else:
            for wanted in re.findall(r'"([\w/.]+\.(?:h|cuh|cpp|cu))"', text):
                places = (self.package / "device" / "include" / wanted, path.parent / wanted)
                used |= {self.name(place) for place in places if place.is_file()}
        used.discard(self.name(path))

    def operator(self, name: str, folder: Path) -> None:
        files = [path for path in folder.iterdir() if path.is_file()]
        self.graph[f"operator {name}"] = {self.name(path) for path in files}
        self.graph["every operator"].add(f"operator {name}")
        for path in files:
            backend = BACKENDS.get(path.name.split("_")[0])
            if backend and (self.package / "backends" / f"{backend}.py").is_file():
                self.graph[self.name(path)].add(self.name(self.package / "backends" / f"{backend}.py"))

    def test(self, path: Path, fixtures: Mapping[str, str]) -> dict[str, str]:
        """A test file, a node for each thing that it defines; what it defines, by name."""
        file, tree = self.name(path), ast.parse(path.read_text(encoding="utf-8"))
        own = {name: f"{file}::{name}" for node in tree.body for name in _names_of(node)}
        imports = {name: at for node in tree.body if not _names_of(node) for name, at in self.imported(node).items()}
        for node in tree.body:
            for name in _names_of(node):
                parts = list(ast.walk(node))
                words = {part.id for part in parts if isinstance(part, ast.Name)}
                words |= {part.arg for part in parts if isinstance(part, ast.arg)}
                used = {known[word] for word in words for known in (own, imports, fixtures) if word in known}
                used |= set(self.imported(node).values()) | self.named(_without_docstring(node))
                self.graph[own[name]] |= used - {own[name]}
        return own


def _imports(node: ast.AST) -> Iterator[ast.Import | ast.ImportFrom]:
    """The import statements in a piece of code: only statements hold them, and most of a tree is expressions."""
    edge = [node]
    # it grows while it is gone through: level by level, as ast.walk does
    for part in edge:
        if isinstance(part, ast.Import | ast.ImportFrom):
            yield part
        for name in ("body", "handlers", "orelse", "finalbody", "cases"):
            edge += getattr(part, name, ())


def _without_docstring(node: ast.stmt) -> ast.AST:
    if isinstance(node, ast.FunctionDef | ast.ClassDef) and ast.get_docstring(node):
        return ast.Module(body=[*node.body[1:], *map(ast.Expr, node.decorator_list)], type_ignores=[])
    return node


def graph_of(root: Path = ROOT) -> Graph:
    """file or test -> what it uses."""
    drawing = Drawing(root)
    for suffix in ("py", "h", "cuh", "cu", "cpp"):
        for path in sorted((root / "src").rglob(f"*.{suffix}")):
            drawing.source(path)
    for folder in ("scripts", "tests"):
        for path in sorted((root / folder).rglob("*.py")):
            if not path.name.startswith(("test_", "conftest")):
                drawing.source(path)
    for name, folder in drawing.operators.items():
        drawing.operator(name, folder)
    fixtures = drawing.test(root / "tests" / "conftest.py", {})
    for path in sorted((root / "tests").glob("test_*.py")):
        drawing.test(path, fixtures)
    return dict(drawing.graph)


def distances(graph: Graph, changed: Iterable[str]) -> dict[str, int]:
    """Steps from each node to the nearest of these; nodes that reach none of them are left out."""
    users: Graph = defaultdict(set)
    for node, used in graph.items():
        for one in used:
            users[one].add(node)
    found = dict.fromkeys(changed, 0)
    edge = list(found)
    while edge:
        edge = [user for node in edge for user in users[node] if _nearer(found, user, found[node] + 1)]
    return found


def _nearer(found: dict[str, int], node: str, steps: int) -> bool:
    if node in found:
        return False
    found[node] = steps
    return True


Near = tuple[int, bool, int]
COMMON = {"src", "opforge", "device", "include", "tests", "test", "scripts"}


def nearness(graph: Graph, changed: Iterable[str], tests: Iterable[str]) -> dict[str, Near]:
    """Of each test that reaches the change: steps to it, whether no word of a changed path is in the name of its file,
    and how many nodes the test reaches in all. The smallest is the nearest.
    """
    steps = distances(graph, changed)
    words = set().union(*(_words(path) for path in changed))
    return {
        test: (steps[test], words.isdisjoint(_words(test.partition("::")[0])), len(_reached(graph, test)))
        for test in set(tests) & set(steps)
    }


def _words(path: str) -> set[str]:
    return set(re.split(r"[/_.:]", path.rpartition(".")[0])) - COMMON


def _reached(graph: Graph, node: str) -> set[str]:
    found, edge = {node}, [node]
    while edge:
        edge = [used for one in edge for used in graph.get(one, ()) if used not in found and not found.add(used)]
    return found


@dataclass(frozen=True, kw_only=True)
class Choice:
    """`chosen` and `left` hold tests' ids, the nearest first; `reached` counts those of the chosen that reach the
    change.
    """

    chosen: tuple[str, ...]
    left: tuple[str, ...]
    reached: int
    seconds: float
    all_seconds: float


def node_of(test: str) -> str:
    """The function of a test's id: without its parameters and its group."""
    return test.partition("[")[0].partition("@")[0]


def choose(
    tests: Sequence[str],
    near: Mapping[str, Near],
    recorded: Mapping[str, float],
    turn: str,
    budget_s: float = SECONDS,
) -> Choice:
    """The campaigns to ask.

    near      of each node that reaches the change, how near it is (`nearness`)
    recorded  seconds by test
    turn      a commit: the same one chooses the same tests, the next one others of the others
    """

    def drawn(test: str) -> str:
        return hashlib.sha256(f"{turn} {test}".encode()).hexdigest()

    def takes(test: str) -> float:
        return recorded.get(test, UNKNOWN_S)

    def first(test: str) -> tuple[Near, str]:
        return near[node_of(test)], drawn(test)

    reached = sorted((test for test in tests if node_of(test) in near), key=first)
    chosen: dict[str, None] = {}
    spent = 0.0
    for test in reached:
        if spent + takes(test) <= budget_s * 2 / 3:
            chosen[test] = None
            spent += takes(test)
    others = sorted(set(tests) - set(chosen), key=drawn)
    limit = min(budget_s, spent + sum(map(takes, others)) / TURNS)
    for test in others:
        if spent + takes(test) <= limit:
            chosen[test] = None
            spent += takes(test)
    return Choice(
        chosen=tuple(chosen),
        left=tuple(dict.fromkeys(test for test in (*reached, *others) if test not in chosen)),
        reached=sum(node_of(test) in near for test in chosen),
        seconds=spent,
        all_seconds=sum(map(takes, tests)),
    )


def recorded_seconds(environ: Mapping[str, str] = os.environ) -> dict[str, float]:
    """Seconds by test: those in the repository, and over them what this machine has seen."""
    found: dict[str, float] = {}
    for path in (ROOT / "tests" / "campaign_seconds.json", kept_folder(environ) / "campaign_seconds.json"):
        if path.exists():
            found |= json.loads(path.read_text(encoding="utf-8"))
    return found


def choice_for_landing(tests: Sequence[str], root: Path = ROOT) -> tuple[Choice, str]:
    """The campaigns of this checkout, and what the change was taken to be, in words."""
    base = base_of_change(root)
    turn = (git(root, "rev-parse", "HEAD") or "").strip()
    if base is None:
        return choose(tests, {}, recorded_seconds(), turn, SECONDS), "unknown, git has no history here"
    changed = changed_files(root, base)
    tested = {file for file in changed if re.fullmatch(r"tests/(test_\w+|conftest)\.py", file)}
    nodes = {node for file in tested if (root / file).exists() for node in changed_tests(root, base, file)}
    near = nearness(graph_of(root), nodes | (changed - tested), map(node_of, tests))
    return choose(tests, near, recorded_seconds(), turn), f"{len(changed)} files since {base[:10]}"
