"""The definition document: a definition with its computed analysis as Markdown, in English or Chinese; `opforge new
--from` reads it again.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from string import Template

from opforge.core.definition.device import DeviceSpec
from opforge.core.definition.dtypes import DTYPES
from opforge.core.definition.shapes import AxisValue
from opforge.core.language import units
from opforge.core.language.errors import unknown
from opforge.forge.program.analysis import Analysis, analysed, verdicts
from opforge.forge.program.definition import Definition, Input, NamedWorkload
from opforge.forge.program.families import Layout, layout_of
from opforge.forge.program.ir import Program
from opforge.forge.read.document_words import (
    COMPUTE_BOUND,
    DEFAULT,
    KINDS,
    LANGUAGES,
    MEMORY_BOUND,
    NOTES,
    SMALL_CALLS,
    STRATEGIES,
    label,
)
from opforge.forge.write.definition_file import workload_sizes

FOLDER = Path(__file__).resolve().parent
ROUNDS, TARGET = 5, 1.0
"""The seeds' limit of rounds and their target, where a definition says none."""
SAID_BY_DEFAULT = {
    "laptop": "of no model: a size that a CPU computes in a moment",
    "large": "of no model: a GPU's size",
}


def document(definition: Definition, kernel: str, devices: Sequence[DeviceSpec], language: str = "en") -> str:
    """The definition document as Markdown.

    kernel     the generated Triton file without its ending, for the commands that are named
    language   "en" or "zh". Raises UsageError for others, and where no family generates the formula
    """
    if language not in LANGUAGES:
        raise unknown("language of the document", language, LANGUAGES)
    program = definition.program()
    layout, analysis = layout_of(program), analysed(program)
    colon = ": " if language == "en" else "："
    workloads = definition.workloads or default_workloads(definition, program)
    largest = max(workloads, key=lambda one: analysis.cost(_flat(one.axes), 4).bytes)
    dtype = definition.dtypes[-1] if analysis.matrix else definition.dtypes[0]
    notes = [(label(key, language) if key in NOTES else key, words) for key, words in definition.requirements.items()]
    requirements = [f"- {key}{colon}{words}" for key, words in notes]
    conditions = [f"- {label('dtypes', language)}{colon}{', '.join(definition.dtypes)}"]
    conditions += [f"- `{name}`{colon}`{text}`" for name, text in (definition.constraints or {}).items()]
    properties = {
        "name": definition.name,
        "kind": definition.kind or KINDS[layout.family][LANGUAGES.index(language)],
        "about": definition.about,
        "source": definition.source,
        "device": definition.device,
        "target": f"{definition.target:g}" if definition.target else "",
    }
    rows = [f"| **{label(field, language)}** | {_cell(text)} |" for field, text in properties.items() if text]
    parameters = [
        f"| **{name}** | float | | | {DEFAULT[language == 'en']} `{value!r}` |" for name, value in program.parameters
    ]
    text = Template((FOLDER / f"document_{language}.md.txt").read_text(encoding="utf-8"))
    return text.substitute(
        name=definition.name,
        kernel=kernel,
        requirements="\n".join([*requirements, ""]),
        properties="\n".join(rows),
        inputs="\n".join([*map(_input_row, definition.inputs), *parameters]),
        conditions="\n".join(conditions),
        outputs="\n".join(
            f"| **{write.name}** | torch.Tensor | `{' '.join(write.axes)}` | |" for write in program.writes
        ),
        rounds=str(definition.rounds or ROUNDS),
        formula=definition.formula.text.strip("\n"),
        workloads="\n".join(map(_workload_row, workloads)),
        growth=analysis.growth,
        flops=analysis.flops,
        space=" + ".join(map(_elements, (*analysis.read.values(), *analysis.written.values()))),
        read=", ".join(f"{name} {_elements(axes)}" for name, axes in analysis.read.items()),
        written=", ".join(f"{name} {_elements(axes)}" for name, axes in analysis.written.items()),
        intensity="\n".join(_intensity(analysis, workloads, definition.dtypes)),
        largest=f"{largest.name} ({_sizes(largest.axes)})",
        dtype=dtype,
        roofline="\n".join(_roofline(analysis, _flat(largest.axes), dtype, devices)),
        bottleneck=_bottleneck(analysis, _flat(largest.axes), dtype, devices, language),
        flow=_flow(program, layout, analysis),
        strategies="".join(
            f"### 3.{number} {title}\n{words.format(name=definition.name, kernel=kernel)}\n\n"
            for number, (title, words) in enumerate(STRATEGIES[layout.family][language], start=1)
        ),
    )


def default_workloads(definition: Definition, program: Program) -> tuple[NamedWorkload, ...]:
    """The sizes that a folder gets where its definition names none."""
    return tuple(
        NamedWorkload(name=name, axes=workload_sizes(program, scale), source=SAID_BY_DEFAULT[name], scale=scale)
        for name, scale in (("laptop", "laptop"), ("large", "gpu"))
    )


def _flat(axes: Mapping[str, AxisValue]) -> dict[str, int]:
    return {name: math.prod(size) if isinstance(size, tuple) else size for name, size in axes.items()}


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())


def _elements(axes: Sequence[str]) -> str:
    return " * ".join(axis.lstrip("*") for axis in axes)


def _sizes(axes: Mapping[str, AxisValue]) -> str:
    return ", ".join(
        f"{name}={'x'.join(map(str, size)) or '()' if isinstance(size, tuple) else size}" for name, size in axes.items()
    )


def _input_row(item: Input) -> str:
    limits = f"`{item.domain}`" if item.domain != "any" else ""
    return f"| **{item.name}** | torch.Tensor | `{' '.join(item.axes)}` | {_cell(item.about)} | {limits} |"


def _workload_row(one: NamedWorkload) -> str:
    return f"| {one.name} | `{_sizes(one.axes)}` | {_cell(one.source)} | {one.scale} |"


def _intensity(analysis: Analysis, workloads: Sequence[NamedWorkload], dtypes: Sequence[str]) -> list[str]:
    rows = []
    for one in workloads:
        for dtype in dtypes:
            cost = analysis.cost(_flat(one.axes), DTYPES[dtype].itemsize)
            work = f"{units.flops(cost.flops)} | {units.size(cost.bytes)} | {cost.intensity:.3g}"
            rows.append(f"| {one.name} | {dtype} | {work} |")
    return rows


def _roofline(analysis: Analysis, axes: Mapping[str, int], dtype: str, devices: Sequence[DeviceSpec]) -> list[str]:
    rows = []
    for name, limit, _ in verdicts(analysis, axes, dtype, DTYPES[dtype].itemsize, devices):
        if limit is None:
            rows.append(f"| {name} | ? | ? | ? | ? | ? |")
            continue
        known = limit.bytes_per_s > 0 and limit.flops_per_s > 0
        memory = f"{units.bytes_per_s(limit.bytes_per_s)} ({limit.memory_source})" if limit.bytes_per_s else "?"
        rate = f"{units.flops_per_s(limit.flops_per_s)} ({limit.compute_source})" if limit.flops_per_s else "?"
        ridge = f"{limit.flops_per_s / limit.bytes_per_s:.3g}" if known else "?"
        rows.append(f"| {name} | {memory} | {rate} | {ridge} | {limit.limiter} | {units.seconds(limit.time_s)} |")
    return rows


def _bottleneck(
    analysis: Analysis, axes: Mapping[str, int], dtype: str, devices: Sequence[DeviceSpec], language: str
) -> str:
    found: dict[str, list[str]] = {"memory": [], "compute": []}
    for name, limit, _ in verdicts(analysis, axes, dtype, DTYPES[dtype].itemsize, devices):
        if limit is not None:
            found[limit.limiter].append(name)
    words = [
        text[language].format(devices=", ".join(names))
        for text, names in ((MEMORY_BOUND, found["memory"]), (COMPUTE_BOUND, found["compute"]))
        if names
    ]
    return "\n\n".join([*words, SMALL_CALLS[language]])


def _flow(program: Program, layout: Layout, analysis: Analysis) -> str:
    kept = {"elementwise": "tile", "rows": "row", "product": "sums of a block"}[layout.family]
    reads = "\n".join(f"{name}[{', '.join(axes)}] ──read──┐" for name, axes in program.reads)
    counted = sum(count for _, count in analysis.operations)
    writes = "\n".join(
        f"{write.name}[{', '.join(write.axes)}] <──written, rounded to its dtype──┘" for write in program.writes
    )
    steps = f"        registers: float32 {kept}; {counted} operations, {len(program.reductions)} reductions"
    return f"{reads}\n{steps}\n{writes}"
