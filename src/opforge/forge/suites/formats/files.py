"""Files and folders of flashinfer-trace and SOL-ExecBench, read and written: definitions with all that belongs to them.

flashinfer-trace   definitions/**/*.json, workloads/**/*.jsonl, solutions/**/*.json, traces/**/*.jsonl under one root
SOL-ExecBench      a folder for each problem: definition.json, workload.jsonl, solution*.json, trace*.jsonl
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from opforge.core.language.errors import UsageError
from opforge.forge.suites.formats.documents import At, Noun, dumped, read_json, read_lines
from opforge.forge.suites.formats.nouns import (
    FLASHINFER,
    SOL,
    Definition,
    ExprAxis,
    Solution,
    TaskSet,
    Trace,
    Workload,
)

KINDS = ("definitions", "workloads", "solutions", "traces")
N = TypeVar("N", bound=Noun)


def read_one(noun: type[N], path: Path) -> N:
    """The noun that a JSON file holds. Raises UsageError."""
    return noun.read(read_json(path), At(str(path)))


def read_each(noun: type[N], path: Path) -> tuple[N, ...]:
    """The nouns that a JSONL file holds, one a line. Raises UsageError."""
    return tuple(noun.read(value, At(place)) for value, place in read_lines(path))


def json_text(noun: Noun) -> str:
    """A document as these benchmarks write it: indented by two, a line end behind it."""
    return dumped(noun.document(), indent=2) + "\n"


def lines_text(nouns: Iterable[Noun]) -> str:
    """Documents one a line."""
    return "".join(dumped(one.document()) + "\n" for one in nouns)


def form_of(definition: Definition) -> str:
    """Whose definition it is by what it says, where no folder tells: SOL-ExecBench's has keys that the other lacks."""
    own = definition.custom_inputs_entrypoint, definition.hf_id
    keys = {"custom_inputs_entrypoint", "hf_id"} & set(definition.keys)
    expressions = any(isinstance(axis, ExprAxis) for axis in definition.axes.values())
    return SOL if any(own) or keys or expressions or definition.op_type is None else FLASHINFER


def holds_tasks(place: Path) -> bool:
    """Whether a file or folder holds definitions in one of these forms."""
    if place.is_file():
        return place.suffix == ".json"
    return (
        (place / "definitions").is_dir() or any(place.glob("definition.json")) or any(place.glob("*/definition.json"))
    )


def task_sets(place: Path) -> list[TaskSet]:
    """What a definition's file, a problem's folder, a folder of those, or a flashinfer-trace root holds, by name.

    Raises UsageError for what is no such thing, for a name that stands twice, and for what belongs to a definition that
    is not there.
    """
    if place.is_file():
        root = _root_above(place)
        if root is None:
            return [_problem(place)]
        only = read_one(Definition, place).name
        return [one for one in _root(root, only=only) if one.definition.name == only]
    if (place / "definitions").is_dir():
        return _root(place)
    files = sorted({*place.glob("definition.json"), *place.glob("*/definition.json")})
    if not files:
        raise UsageError(
            f"{place} holds no definitions. Name a definition's .json file, a folder with definition.json in it, or "
            "one with a folder definitions/."
        )
    found = [_problem(file) for file in files]
    _no_name_twice((one.definition.name, one.where) for one in found)
    return found


def files_of_task(task: TaskSet) -> dict[str, str]:
    """The texts that say a TaskSet, by their paths below a root, in its form."""
    name = task.definition.name
    plain = [one.name for one in task.solutions]
    for what in (name, *plain):
        if not re.fullmatch(r"[\w.+-]+", what) or what.startswith("."):
            raise UsageError(f"{what!r:.80} can name no file. Rename it: letters, digits, ._+-")
    if task.form == SOL:
        texts = {
            f"{name}/definition.json": json_text(task.definition),
            f"{name}/reference.py": task.definition.reference,
            f"{name}/workload.jsonl": lines_text(line.workload for line in task.workloads),
            **{f"{name}/solution_{one.name}.json": json_text(one) for one in task.solutions},
        }
        return texts | ({f"{name}/trace.jsonl": lines_text(task.traces)} if task.traces else {})
    kind = task.definition.op_type or "op"
    texts = {f"definitions/{kind}/{name}.json": json_text(task.definition)}
    if task.workloads:
        texts[f"workloads/{kind}/{name}.jsonl"] = lines_text(task.workloads)
    authors = {one.name: re.sub(r"[^\w.+-]+", "_", one.author).strip(".") or "unknown" for one in task.solutions}
    for item in task.solutions:
        texts[f"solutions/{authors[item.name]}/{kind}/{name}/{item.name}.json"] = json_text(item)
    for author in dict.fromkeys(authors.get(trace.solution or "", "unknown") for trace in task.traces):
        of = [line for line in task.traces if authors.get(line.solution or "", "unknown") == author]
        texts[f"traces/{author}/{kind}/{name}.jsonl"] = lines_text(of)
    return texts


def _root_above(file: Path) -> Path | None:
    """The flashinfer-trace root that a definition's file stands in."""
    return next((folder.parent for folder in file.resolve().parents if folder.name == "definitions"), None)


def _problem(file: Path) -> TaskSet:
    """SOL-ExecBench's folder, or a definition on its own."""
    definition = read_one(Definition, file)
    alone = TaskSet(form=form_of(definition), definition=definition, where=str(file))
    folder = file.parent
    if file.name != "definition.json":
        return alone
    workloads = [
        Trace(definition=definition.name, workload=one)
        for path in sorted(folder.glob("workload*.jsonl"))
        for one in read_each(Workload, path)
    ]
    solutions = [read_one(Solution, path) for path in sorted(folder.glob("solution*.json"))]
    traces = [one for path in sorted(folder.glob("trace*.jsonl")) for one in read_each(Trace, path)]
    parts: list[Solution | Trace] = [*solutions, *traces]
    for what in parts:
        if what.definition != definition.name:
            raise UsageError(
                f"{folder} has {type(what).__name__.lower()}s of {what.definition!r}, and the definition there is "
                f"{definition.name!r}. Let them agree."
            )
    return replace(alone, form=SOL, workloads=tuple(workloads), solutions=tuple(solutions), traces=tuple(traces))


def _root(root: Path, only: str = "") -> list[TaskSet]:
    """All of a flashinfer-trace root; of one definition, where `only` names it."""
    found = [(path, read_one(Definition, path)) for path in sorted((root / "definitions").rglob("*.json"))]
    _no_name_twice((one.name, str(path)) for path, one in found)
    for path, one in found:
        if one.op_type is None:
            raise UsageError(f"{path}: $.op_type must be there. flashinfer-trace needs the kind of operator.")
    kept = {kind: _by_definition(root, kind, only) for kind in ("workloads", "solutions", "traces")}
    names = {one.name for _, one in found}
    for kind, of in kept.items():
        strange = sorted(set(of) - names)
        if strange:
            raise UsageError(f"{root / kind} has some of {strange[0]!r}, for which there is no definition. Add it.")
    for name, lines in kept["workloads"].items():
        if not all(isinstance(one, Trace) and one.workload_alone for one in lines):
            raise UsageError(f"{root / 'workloads'}: a line of {name} has a result. It belongs into traces/.")
    return [
        TaskSet(
            form=FLASHINFER,
            definition=one,
            where=str(path),
            workloads=tuple(line for line in kept["workloads"].get(one.name, ()) if isinstance(line, Trace)),
            solutions=tuple(item for item in kept["solutions"].get(one.name, ()) if isinstance(item, Solution)),
            traces=tuple(line for line in kept["traces"].get(one.name, ()) if isinstance(line, Trace)),
        )
        for path, one in found
    ]


def _by_definition(root: Path, kind: str, only: str) -> dict[str, list[Solution | Trace]]:
    found: dict[str, list[Solution | Trace]] = {}
    for path in sorted((root / kind).rglob("*.json" if kind == "solutions" else "*.jsonl")):
        of: Sequence[Solution | Trace] = (read_one(Solution, path),) if kind == "solutions" else read_each(Trace, path)
        for one in of:
            if not only or one.definition == only:
                found.setdefault(one.definition, []).append(one)
    return found


def _no_name_twice(named: Iterable[tuple[str, str]]) -> None:
    seen: dict[str, str] = {}
    for name, where in named:
        if name in seen:
            raise UsageError(f"{where} and {seen[name]} both define {name!r}. Rename one.")
        seen[name] = where
