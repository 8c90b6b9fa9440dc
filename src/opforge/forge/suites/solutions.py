"""Solutions of other benchmarks as implementations of a generated operator, where their language and their calls fit:
the source as it is, with a function behind it that opforge calls.
"""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Mapping

from opforge.core.language.errors import UsageError
from opforge.forge.program.definition import Definition
from opforge.forge.suites.formats.documents import At
from opforge.forge.suites.formats.nouns import BuildSpec, Solution, SourceFile, functions_of
from opforge.forge.suites.own_module import OWN
from opforge.forge.suites.source_names import SAID, names_of
from opforge.forge.suites.task_fields import MOST
from opforge.forge.suites.traced_tasks import Reading
from opforge.forge.write.backends import IDEAS
from opforge.forge.write.definition_file import ODD, Case

LANGUAGES = {"python": "torch", "pytorch": "torch", "triton": "triton"}
"""Backends of opforge by the languages of solutions that launch themselves from Python."""
NATIVE = {"cpp": ("cpp", ".cpp"), "cuda": ("cuda", ".cu"), "cuda_cpp": ("cuda", ".cu")}
_INNER = "_solution"


def own_reference(reference: str, reading: Reading) -> tuple[Mapping[str, str], tuple[str, ...]]:
    """The task's own reference as the baseline's file, or why there is none."""
    solution = Solution(
        name=OWN.removeprefix("torch_"),
        definition=reading.definition.name,
        author="the task",
        spec=BuildSpec(
            language="pytorch",
            target_hardware=("any",),
            entry_point="reference.py::run",
            destination_passing_style=False,
        ),
        sources=(SourceFile(path="reference.py", content=reference),),
    )
    try:
        name, text = brought_in(solution, reading, baseline=True)
    except UsageError as error:
        return {}, (f"the task's own reference as baseline: {error}",)
    return {name: text}, ()


def brought_in(solution: Solution, reading: Reading, *, baseline: bool = False) -> tuple[str, str]:
    """The name and the text of the file that a solution becomes beside the operator of a Reading.

    baseline   whether it is what the others are compared with: compiled too, and timed where it rounds more often
    Raises UsageError with the reason where it fits none of opforge's backends.
    """
    spec = solution.spec
    languages = spec.languages or (spec.language or "",)
    who = f"the solution {solution.name}"
    if len(languages) > 1:
        raise UsageError(f"{who} is in {' and '.join(languages)}, and an implementation here is in one language.")
    if len(solution.sources) > 1:
        raise UsageError(f"{who} has {len(solution.sources)} source files, and an implementation here is one file.")
    (language,), (source,) = languages, solution.sources
    slug = re.sub(r"\W+", "_", solution.name).strip("_").lower() or "solution"
    if language in NATIVE:
        backend, suffix = NATIVE[language]
        if not re.search(r"\bOPFORGE_EXPORT\(run\b", source.content):
            binding = spec.binding or ("torch" if spec.languages else "tvm-ffi")
            raise UsageError(
                f"{who} is called through {binding}, and kernels in {backend} here export run(…) by OPFORGE_EXPORT: "
                "docs/kernels.md."
            )
        return f"{backend}_{slug}{suffix}", source.content
    if language not in LANGUAGES:
        raise UsageError(f"{who} is in {language}, for which opforge has no backend that takes it as it is.")
    largest = max(math.prod(reading.fixed.get(axis, 1) for axis in item.axes) for item in reading.definition.inputs)
    if largest > MOST:
        raise UsageError(f"{who} is for sizes alone that are too large to be verified on ({largest} elements).")
    backend = LANGUAGES[language]
    # not the name of what is generated
    slug = f"{slug}_solution" if f"{backend}_{slug}" in IDEAS else slug
    called = "launch" if backend == "triton" else "run"
    entry = spec.entry_point.partition("::")[2]
    functions_of(source.content, At(who))
    tree = ast.parse(source.content)
    names = names_of(tree)
    if entry not in names:
        raise UsageError(f"{who} has no {entry} at the top level of {source.path}.")
    taken = sorted((names & (SAID | {_INNER, called})) - {entry})
    if taken:
        raise UsageError(f"{who} has a {taken[0]} of its own, which means something in a file of opforge.")
    head = "" if ast.get_docstring(tree) is not None else f'"""{_about(solution)}"""\n\n'
    lines = [f"{_INNER} = {entry}", f"SUPPORTS = {_supports(reading)!r}"]
    if baseline:
        lines.append('INACCURATE = "it rounds as PyTorch does after every step"')
    elif backend == "torch":
        lines.append('NOT_COMPILED = "a solution that came with the task is timed as it is"')
    write = _launch if backend == "triton" else _run
    text = f"{head}{source.content.rstrip()}\n\n\n" + "\n".join(lines)
    return f"{backend}_{slug}.py", f"{text}\n\n\n{write(reading, in_place=spec.destination_passing_style)}"


def cases_at(reading: Reading) -> tuple[Case, ...]:
    """Cases at the sizes that a task says for all of its workloads, for solutions that hold for those alone."""
    if not reading.fixed:
        return ()
    axes = list(dict.fromkeys(axis for item in reading.definition.inputs for axis in item.axes))
    free = [axis for axis in axes if axis not in reading.fixed]
    why = "the sizes that the task says for all of its workloads"
    found: list[Case] = []
    for name, sizes in (("own_sizes_odd", ODD), ("own_sizes_one", (1,))):
        given = {axis: sizes[number % len(sizes)] for number, axis in enumerate(free)}
        found.append((name, {axis: reading.fixed.get(axis, given.get(axis, 1)) for axis in axes}, why, "", ""))
    return tuple(found) if free else (found[0],)


def _supports(reading: Reading) -> dict[str, str]:
    """What a benchmark promises to its solutions: the sizes that it fixes, and no empty tensor."""
    axes = dict.fromkeys(axis for item in reading.definition.inputs for axis in item.axes)
    said = {f"made for {axis} {size}": f"{axis} == {size}" for axis, size in reading.fixed.items()}
    free = [axis for axis in axes if axis not in reading.fixed]
    return said | ({"not empty": " and ".join(f"{axis} > 0" for axis in free)} if free else {})


def _run(reading: Reading, *, in_place: bool) -> str:
    names = [item.name for item in reading.definition.inputs]
    given = list(map(str, map(_shown, reading.inputs.values())))
    if not in_place:
        return f"def run({', '.join(names)}):\n    return {_INNER}({', '.join(given)})\n"
    first, outputs = names[0], list(_outputs(reading.definition))
    made = "".join(
        f"    {name} = {first}.new_empty(({''.join(f'{_size(reading.definition, axis)}, ' for axis in axes)}))\n"
        for name, axes in outputs
    )
    results = [name for name, _ in outputs]
    return (
        f"def run({', '.join(names)}):\n{made}    {_INNER}({', '.join([*given, *results])})\n"
        f"    return {', '.join(results)}\n"
    )


def _launch(reading: Reading, *, in_place: bool) -> str:
    names = [item.name for item in reading.definition.inputs]
    given = list(map(str, map(_shown, reading.inputs.values())))
    results = [name for name, _ in _outputs(reading.definition)]
    head = f"def launch({', '.join([*names, *results])}):\n"
    if in_place:
        return f"{head}    {_INNER}({', '.join([*given, *results])})\n"
    # a copy is timed with it: opforge's kernels write where they are told
    if len(results) == 1:
        return f"{head}    {results[0]}.copy_({_INNER}({', '.join(given)}))\n"
    found = "".join(f"    {name}.copy_(found[{number}])\n" for number, name in enumerate(results))
    return f"{head}    found = {_INNER}({', '.join(given)})\n{found}"


def _shown(value: object) -> object:
    return value if isinstance(value, str) else repr(value)


def _outputs(definition: Definition) -> list[tuple[str, tuple[str, ...]]]:
    return [(write.name, write.axes) for write in definition.program().writes]


def _size(definition: Definition, axis: str) -> str:
    """A size as an expression over the inputs."""
    for item in definition.inputs:
        if axis in item.axes:
            return f"{item.name}.shape[{item.axes.index(axis)}]"
    raise UsageError(f"The output's axis {axis} stands in no input.")


def _about(solution: Solution) -> str:
    words = f"{solution.name} by {solution.author}" + (f": {solution.description}" if solution.description else "")
    return " ".join(words.replace("\\", " ").replace('"', "'").split())


def taken_in(solutions: tuple[Solution, ...], reading: Reading) -> tuple[Mapping[str, str], tuple[str, ...]]:
    """The files of the solutions that fit, by name, and a sentence for each that does not."""
    files: dict[str, str] = {}
    reasons: list[str] = []
    for one in solutions:
        try:
            name, text = brought_in(one, reading)
        except UsageError as error:
            reasons.append(str(error))
            continue
        if name in files:
            reasons.append(f"the solution {one.name} has the name of another one.")
        files.setdefault(name, text)
    return files, tuple(reasons)
