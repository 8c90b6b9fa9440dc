"""`op.py` of a generated operator: the reference, its bound, cases that find what kernels get wrong, workloads."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from opforge.core.definition.shapes import AxisValue
from opforge.core.language.expr import evaluate
from opforge.forge.program.analysis import analysed
from opforge.forge.program.definition import Definition
from opforge.forge.program.evaluate import spread
from opforge.forge.program.families import Layout, layout_of
from opforge.forge.program.ir import Program
from opforge.forge.write.emit import call
from opforge.forge.write.product_files import product_cases
from opforge.forge.write.torch_files import reference_text

Case = tuple[str, dict[str, AxisValue], str, str, str]
"""A name, sizes, why, a distribution ("" is normal), a layout ("" is contiguous)."""

ODD = (7, 5, 3, 11, 13)
"""Sizes of axes but the last one: odd, and different, so that swapped axes show."""


SCALES = {"tiny": (1e-4, 0.0), "large": (200.0, 0.0), "offset": (1.0, 100.0)}
"""Distributions that not every formula tells apart: factor and shift of normal values, as verify draws them."""
OTHERS = ("", "special", "constant_rows")
ALIKE = 1e-4
"""A thousand units of float32: below, results that were mixed up lie within a bound."""


def op_text(
    definition: Definition,
    program: Program,
    layout: Layout,
    implementations: tuple[str, ...],
    more: Sequence[Case] = (),
    silent: Collection[str] = (),
) -> str:
    """`op.py` as text; `more` are cases beside those that every generated operator gets, `silent` names those that it
    does not get.
    """
    name = definition.name
    about = definition.about or one_line(definition)
    nouns = ["Case", *(["Constraint"] if _constraints(definition, program) else []), "Operator"]
    nouns += [*(["Scalar"] if definition.parameters else []), "TensorSpec", "Tolerance", "Workload"]
    fields = [f"    name={name!r},".replace("'", '"'), f"    about={quoted(about)},"]
    if definition.source:
        fields.append(f"    source={quoted(definition.source)},")
    fields += _tuple("inputs", [_tensor(item.name, item.axes, item.domain, item.about) for item in definition.inputs])
    fields += _tuple("outputs", [_tensor(write.name, write.axes, "any", "") for write in program.writes])
    fields += _tuple(
        "scalars", [["Scalar", f"name={quoted(key)}", f"default={value!r}"] for key, value in program.parameters]
    )
    if definition.dtypes != ("float32", "float16", "bfloat16"):
        comma = "," * (len(definition.dtypes) == 1)
        fields.append(f"    dtypes=({', '.join(map(quoted, definition.dtypes))}{comma}),")
    fields += _tuple("constraints", _constraints(definition, program))
    fields += ["    reference=reference,", f"    flops={quoted(analysed(program).flops)},"]
    if layout.family == "product":
        fields.append('    unit="matrix",')
    shared = f"shared={quoted(program.axes[-1])}"
    cut = ', cut=dtype != "float32"' if layout.family == "product" else ""
    told = "each operation is rounded to float32, the result once to its dtype"
    tolerance = ["errors=errors", *([shared] if layout.family == "rows" else []), f"about={quoted(told)}"]
    fields.append(call("tolerance=Tolerance", tolerance, 4, ","))
    fields += _tuple(
        "cases",
        [
            _case(case, case[3] == "special" and bool(program.along))
            for case in (*cases(definition, program, layout), *more)
            if case[0] not in silent
        ],
    )
    fields += _tuple("workloads", _workloads(definition, program))
    fields += _tuple("implementations", [[quoted(one)] for one in implementations])
    return (
        f'"""{one_line(definition)}"""\n\n'
        f"from opforge.core.operator import {', '.join(nouns)}\n"
        "from opforge.definitions.bounds.formulas import formula_errors\n\n\n"
        + reference_text(program, layout)
        + "\n\ndef errors(inputs, outputs, scalars, dtype):\n"
        "    # the reference itself, on numbers that carry their rounding errors along\n"
        f"    return formula_errors(reference, inputs, outputs, scalars{cut})\n\n\n"
        "operator = Operator(\n" + "\n".join(fields) + "\n)\n"
    )


def one_line(definition: Definition) -> str:
    """The operator in a line: its name, and its formula where that is short."""
    formula = "; ".join(
        line.split("#")[0].strip() for line in definition.formula.text.splitlines() if line.split("#")[0].strip()
    )
    text = (
        f"{definition.name}: {formula}"
        if len(formula) < 90
        else f"{definition.name}: {formula[:80].rsplit(' ', 1)[0]} …"
    )
    return text.replace("\\", " ").replace('"', "'")


def quoted(text: str) -> str:
    """`text` as a string in double quotes, on one line."""
    plain = " ".join(text.split()).replace("\\", "\\\\").replace('"', "'")
    return f'"{plain}"'


def cases(definition: Definition, program: Program, layout: Layout) -> list[Case]:
    """The cases of a program that its constraints allow."""
    found = product_cases(program, layout) if layout.family == "product" else _cases_of_elements(program, layout)
    # where all results are alike a case says nothing: a kernel that mixes up rows would pass it
    told = {name for name, (factor, shift) in SCALES.items() if spread(program, factor=factor, shift=shift) > ALIKE}
    # special values of sums are asked in float16 alone, whose squares float32 holds
    if program.along and "float16" not in definition.dtypes:
        found = [case for case in found if case[3] != "special"]
    return [case for case in found if _allowed(definition, program, case[1]) and case[3] in {*told, *OTHERS}]


def _cases_of_elements(program: Program, layout: Layout) -> list[Case]:
    """Cases of elements and of rows."""
    *outer, last = program.axes
    rows = layout.family == "rows"

    def sizes(width: int, outer_sizes: tuple[int, ...] = ODD, rank: int = 2) -> dict[str, AxisValue]:
        found: dict[str, AxisValue] = {}
        for number, axis in enumerate(outer):
            size = outer_sizes[number % len(outer_sizes)]
            found[axis.lstrip("*")] = (3, size)[2 - rank :] if axis.startswith("*") else size
        found[last.lstrip("*")] = (3, width)[2 - rank :] if last.startswith("*") else width
        return found

    empty = sizes(16)
    first = program.axes[0].lstrip("*")
    empty[first] = (0, 3) if isinstance(empty[first], tuple) else 0
    found: list[Case] = [
        ("one_element", sizes(1, (1,), 1), "the smallest call: all of it is tail", "", ""),
        ("odd", sizes(129), "one past a block of 128, odd sizes elsewhere", "", ""),
        ("prime", sizes(1021, (2, 3)), "a prime width: rows that begin off the 16-byte grid", "", ""),
        ("past_a_block", sizes(4097, (1,), 1), "one past a block of 1024, 2048 or 4096", "", ""),
        ("empty", empty, "no element at all", "", ""),
        ("tiny", sizes(65), "values near 0", "tiny", ""),
        ("large", sizes(65), "values whose squares leave float16, and exponentials that overflow", "large", ""),
        ("offset", sizes(257), "a mean of 100 over deviations of 1: differences cancel", "offset", ""),
        # of rows in float16 alone: the square of float32's largest number overflows in the middle of a sum
        ("special", sizes(67), "NaN and infinities go where the formula takes them", "special", ""),
        ("misaligned", sizes(256), "vector accesses must not assume 16-byte addresses", "", "misaligned"),
        ("transposed", sizes(65), "strides that are not row-major", "", "transposed"),
    ]
    if outer:
        found.append(
            (
                "many_narrow",
                sizes(3, (131, 2, 1, 1, 1)),
                "more rows than one program takes, each narrower than a warp",
                "",
                "",
            )
        )
    if any(axis.startswith("*") for axis in program.axes):
        found.append(("scalar_rank", sizes(100, ODD, 0), "no axis where any number may stand", "", ""))
    if rows and not program.reductions:
        found.append(("no_columns", sizes(0), "rows of nothing", "", ""))
    if rows:
        found += [
            ("one_column", sizes(1), "reductions of one element", "", ""),
            ("wide", sizes(17003, (2, 1), 1), "past what a program keeps in registers", "", ""),
            ("constant_rows", sizes(96), "no variance, all elements alike", "constant_rows", ""),
        ]
    return found


def workload_sizes(program: Program, scale: str) -> dict[str, AxisValue]:
    """Sizes of a workload where the definition has none: 2^20 elements for a laptop, 2^26 for a GPU."""
    if any(value.operation == "dot" for value in program.reductions):
        # 2^28 and 2^37 operations
        side = 512 if scale == "laptop" else 4096
        column = program.writes[0].axes[-1]
        *outer, _ = program.writes[0].axes
        if len(layout_of(program).groups) > 2:
            # matrices of a batch: 2^28 and 2^37 operations of them
            count, side = (8, 256) if scale == "laptop" else (64, 1024)
            apart = max(1, round(count ** (1 / (len(outer) - 1))))
            shape: dict[str, AxisValue] = {a.lstrip("*"): (apart,) if a.startswith("*") else apart for a in outer[:-1]}
            over = next(value.over for value in program.reductions)
            return {**shape, outer[-1]: side, column: side, over: side}
        each = max(1, round(side ** (1 / len(outer))))
        named: dict[str, AxisValue] = {axis.lstrip("*"): (each,) if axis.startswith("*") else each for axis in outer}
        over = next(value.over for value in program.reductions)
        return {**named, column: side, over: side}
    *outer, last = program.axes
    width, rest = (1024, 1024) if scale == "laptop" else (4096, 16384)
    each = max(2, round(rest ** (1 / max(1, len(outer)))))
    found: dict[str, AxisValue] = {axis.lstrip("*"): (each,) if axis.startswith("*") else each for axis in outer}
    found[last.lstrip("*")] = (
        (rest, width)
        if last.startswith("*") and not outer
        else ((width,) if last.startswith("*") else width if outer else width * rest)
    )
    return found


def _allowed(definition: Definition, program: Program, axes: Mapping[str, AxisValue]) -> bool:
    names = {**axes, **dict(program.parameters), "dtype": "float32"}
    return all(evaluate(text, names) for _, text, _ in _conditions(definition, program))


def _conditions(definition: Definition, program: Program) -> list[tuple[str, str, str]]:
    found = [(key, text, "said by the definition") for key, text in (definition.constraints or {}).items()]
    for axis in dict.fromkeys(value.over for value in program.reductions):
        found.append((f"has_{axis}", f"{axis} >= 1", "a reduction over nothing is not defined"))
    return found


def _constraints(definition: Definition, program: Program) -> list[list[str]]:
    return [
        ["Constraint", f"name={quoted(name)}", f"expression={quoted(text)}", f"about={quoted(about)}"]
        for name, text, about in _conditions(definition, program)
    ]


def _tensor(name: str, axes: tuple[str, ...], domain: str, about: str) -> list[str]:
    words = ["TensorSpec", f"name={quoted(name)}", f"shape={quoted(' '.join(axes))}"]
    words += [f"domain={quoted(domain)}"] if domain != "any" else []
    return words + ([f"about={quoted(about)}"] if about else [])


def _case(case: Case, narrow: bool) -> list[str]:
    name, axes, why, distribution, layout = case
    words = ["Case", f"name={quoted(name)}", f"axes={_sizes(axes)}"]
    words += [f"distribution={quoted(distribution)}"] if distribution else []
    words += [f"layout={quoted(layout)}"] if layout else []
    words += ['dtype="float16"'] if narrow else []
    return [*words, f"why={quoted(why)}"]


def _workloads(definition: Definition, program: Program) -> list[list[str]]:
    if definition.workloads:
        return [
            ["Workload", f"name={quoted(one.name)}", f"axes={_sizes(one.axes)}", f"source={quoted(one.source)}"]
            + ([f"scale={quoted(one.scale)}"] if one.scale != "gpu" else [])
            for one in definition.workloads
        ]
    found = []
    for name, scale, source in (
        ("laptop", "laptop", "of no model: a size that a CPU computes in a moment"),
        ("large", "gpu", "of no model: a size that keeps a GPU busy"),
    ):
        axes = workload_sizes(program, scale)
        if _allowed(definition, program, axes):
            words = ["Workload", f"name={quoted(name)}", f"axes={_sizes(axes)}", f"source={quoted(source)}"]
            found.append(words + ([f"scale={quoted(scale)}"] if scale != "gpu" else []))
    return found


def _sizes(axes: Mapping[str, AxisValue]) -> str:
    return "{" + ", ".join(f"{quoted(name)}: {size!r}" for name, size in axes.items()) + "}"


def _tuple(field: str, items: list[list[str]]) -> list[str]:
    """A field that is a tuple of calls (the first word is what is called) or of plain words, one a line."""
    if not items:
        return []
    words = [f"{item[0]}({', '.join(item[1:])})" if len(item) > 1 else item[0] for item in items]
    alone = f"    {field}=({words[0]},),"
    if len(words) == 1 and len(alone) <= 120:
        return [alone]
    lines = [call(item[0], item[1:], 8, ",") if len(item) > 1 else f"        {item[0]}," for item in items]
    return [f"    {field}=(", *lines, "    ),"]
