"""A whole operator folder from a definition: everything is computed first, then written at once, or nothing is."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from opforge.core.definition.operator import Operator
from opforge.core.language.errors import Inadequate
from opforge.forge.program.analysis import analysed, described
from opforge.forge.program.definition import Definition
from opforge.forge.program.families import layout_of
from opforge.forge.program.ir import shown
from opforge.forge.write.backends import BACKENDS, IDEAS
from opforge.forge.write.definition_file import Case, one_line, op_text, workload_sizes
from opforge.forge.write.document import document
from opforge.forge.write.four_files import four_files
from opforge.forge.write.new import checked_folder
from opforge.machine import descriptors
from opforge.registry import Registry, load
from opforge.trial import ensure_adequate
from opforge.verify.extra.adequacy import QUICK_ELEMENTS, adequacy

BROUGHT_IN = "a solution that came with the task, as it is"
OWN_TASK = {"torch_task": "the task's own PyTorch, unchanged: the baseline of a speed-up"}


@dataclass(frozen=True, kw_only=True)
class More:
    """What a folder gets beside what is generated: implementations as texts by file name, and cases. `silent` are
    generated cases that it does not get: there rounding is as large as the results, and any answer would pass.
    """

    files: Mapping[str, str] = field(default_factory=dict)
    cases: tuple[Case, ...] = ()
    silent: frozenset[str] = frozenset()


def files_of(
    definition: Definition, language: str = "en", more: More | None = None, backends: Sequence[str] = ()
) -> dict[str, str]:
    """The folder's files by name. Raises UsageError, with the reason, where no family generates the program.

    language   of the definition document: "en" or "zh"
    backends   what is written beside PyTorch, Triton and C++: names of ON_REQUEST
    """
    more = more or More()
    program = definition.program()
    layout = layout_of(program)
    kernels: dict[str, str] = {}
    beside: dict[str, str] = {}
    for backend in BACKENDS.values():
        if backend.always or backend.name in backends:
            (kernels if backend.ideas else beside).update(backend.files(definition, program, layout))
    generated = tuple(name.split(".")[0] for name in kernels)
    implementations = (*generated, *(name.split(".")[0] for name in more.files))
    triton = next(name for name in implementations if name.startswith("triton_"))
    return {
        "definition.md": document(definition, triton, list(descriptors().values()), language),
        **four_files(definition, program, generated),
        "op.py": op_text(definition, program, layout, implementations, more.cases, more.silent),
        "README.md": _readme(definition, implementations, more.silent),
        **kernels,
        **beside,
        **more.files,
    }


def generate(
    registry: Registry,
    definition: Definition,
    home: Path,
    language: str = "en",
    more: More | None = None,
    backends: Sequence[str] = (),
) -> tuple[Path, ...]:
    """Write `home/name/`, whole or not at all. The files written.

    language   of the definition document: "en" or "zh"
    backends   what is written beside PyTorch, Triton and C++: names of ON_REQUEST
    Raises UsageError when the name is none for an operator or taken, or no family generates the formula; Inadequate
    where the operator's bound would accept a wrong answer, with which nothing could be verified.
    """
    folder = checked_folder(registry, definition.name, home)
    more = more or More()
    files = files_of(definition, language, more, backends)
    home.mkdir(parents=True, exist_ok=True)
    # beside its place, so that one rename puts it there
    with tempfile.TemporaryDirectory(prefix=f".{definition.name}-", dir=home) as scratch:
        making = Path(scratch) / definition.name
        making.mkdir()
        _write(making, files)
        silent = _silent(load((Path(scratch),)).operator(definition.name))
        if silent:
            files = files_of(definition, language, replace(more, silent=silent), backends)
            _write(making, files)
        making.rename(folder)
    return tuple(sorted(folder / name for name in files))


def _write(folder: Path, files: Mapping[str, str]) -> None:
    for name, text in files.items():
        (folder / name).write_text(text, encoding="utf-8")


def _silent(operator: Operator) -> frozenset[str]:
    """The cases of unusual values whose bound accepts a wrong answer that it refuses among ordinary ones. Raises
    Inadequate where ordinary cases accept one, or none of them refuses it.
    """
    try:
        ensure_adequate(operator)
        return frozenset()
    except Inadequate as error:
        unusual = {case.name for case in operator.cases if case.distribution != "normal"}
        result = adequacy(operator, most_elements=QUICK_ELEMENTS)
        accepting = {one.situation for one in result.accepted}
        refused = {one.name for one in result.impostors if one.outcome == "rejected" and one.situation not in unusual}
        if accepting <= unusual and {one.name for one in result.accepted} <= refused:
            return frozenset(accepting)
        found = str(error).split(". Narrow")[0].removeprefix(f"{operator.name}: ")
        raise Inadequate(
            f"{operator.name} was not written, since nothing could be verified by its bound: {found}. Write a "
            "formula whose results tell more inputs apart, or the operator by hand: opforge new NAME"
        ) from error


def explained(definition: Definition) -> str:
    """What a definition computes, as IR, and what that costs on the devices that are known."""
    program = definition.program()
    layout = layout_of(program)
    sizes = workload_sizes(program, "gpu")
    axes = {name: math.prod(size) if isinstance(size, tuple) else size for name, size in sizes.items()}
    groups = " | ".join(", ".join(group) for group in layout.groups)
    lines = [shown(program), "", f"family     {layout.family}, walked as {groups}"]
    return "\n".join([*lines, described(analysed(program), axes, descriptors().values())])


def _readme(definition: Definition, implementations: tuple[str, ...], silent: Collection[str] = ()) -> str:
    analysis = analysed(definition.program())
    formula = "".join(f"    {line}\n" for line in definition.formula.text.splitlines())
    ideas = {**IDEAS, **OWN_TASK}
    rows = "".join(f"| `{name}` | {ideas.get(name, BROUGHT_IN)} |\n" for name in implementations)
    return (
        f"# {definition.name}\n\n{definition.about or one_line(definition)}\n\n{formula}\n"
        f"Generated by `opforge new` from this formula. Growth {analysis.growth}; {analysis.flops} FLOPs, each input "
        "read and each output written once; the analysis: [definition.md](definition.md).\n\n"
        "| version | idea |\n|---|---|\n"
        + rows
        + (
            f"\nNot asked: {', '.join(sorted(silent))}. There rounding in float32 may be as large as what is computed, "
            "so that a wrong answer would pass.\n"
            if silent
            else ""
        )
    )
