"""A definition: an operator's name, tensors with symbolic shapes, parameters, and its mathematics as a formula.

It is read from YAML (`read_definition`), or made of a formula alone (`from_formula`). Nothing in it is executed.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from opforge.core.definition.tensors import DOMAINS
from opforge.core.language.errors import UsageError, unknown
from opforge.forge.program.formula import Formula, parse
from opforge.forge.program.ir import Program
from opforge.forge.program.lower import CONSTANTS, FUNCTIONS, OVER_AN_AXIS, Declared, lower

FIELDS = (
    "name", "kind", "about", "source", "device", "target", "rounds", "inputs", "outputs", "parameters", "dtypes",
    "constraints", "formula", "workloads", "requirements",
)  # fmt: skip
DTYPES = ("float32", "float16", "bfloat16")
"""What generated kernels store; they compute in float32."""

TAKEN = frozenset(
    """
    row col rows cols inside place first last here n i r at tl triton torch run launch self None True False and or
    not if else for while def class return import from is in lambda pass try with yield as del global raise assert
    async await break continue except finally nonlocal elif auto bool case catch char const default delete do double
    enum explicit export extern false float friend goto inline int long mutable namespace new operator private
    protected public register short signed sizeof static struct switch template this throw true typedef typename
    union unsigned using virtual void volatile opforge std data T BLOCK TILE ROWS COLS num_warps dtype itemsize
    Tensor size abs min max len prod sums line terms j block_m block_n grid cdiv sqrt log2 next_pow2
    """.split()  # noqa: SIM905
)
"""Names that mean something in generated code, in one of its languages."""

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*")
_AXIS = re.compile(r"\*?[A-Za-z][A-Za-z0-9_]*")
LONGEST_FILE = 100_000


@dataclass(frozen=True, kw_only=True)
class Input:
    """An input: its axes in the order of memory ("*lead": any number of axes), and which numbers a caller may give."""

    name: str
    axes: tuple[str, ...]
    domain: str = "any"
    about: str = ""


@dataclass(frozen=True, kw_only=True)
class NamedWorkload:
    """A size somebody really runs: a number for each axis, a list for a `*name`."""

    name: str
    axes: Mapping[str, int | tuple[int, ...]]
    source: str
    scale: str


@dataclass(frozen=True, kw_only=True)
class Definition:
    """An operator as its author says it. `outputs` may leave axes to the formula (None).

    kind, device    what sort of operator it is and where it shall run, in words
    target, rounds  the speed-up over the baseline that is asked for, and after how many rounds to stop; None: not said
    requirements    what else is asked for, in words: title and text
    """

    name: str
    formula: Formula
    inputs: tuple[Input, ...]
    outputs: Mapping[str, tuple[str, ...] | None]
    parameters: Mapping[str, float]
    about: str = ""
    source: str = ""
    dtypes: tuple[str, ...] = DTYPES
    constraints: Mapping[str, str] | None = None
    workloads: tuple[NamedWorkload, ...] = ()
    kind: str = ""
    device: str = ""
    target: float | None = None
    rounds: int | None = None
    requirements: Mapping[str, str] = field(default_factory=dict)

    def program(self) -> Program:
        """What the formula computes. Raises FormulaError that points at what has no meaning."""
        return lower(
            self.formula,
            Declared(
                inputs={item.name: item.axes for item in self.inputs},
                outputs=self.outputs,
                parameters=self.parameters,
            ),
        )


def from_formula(
    name: str, text: str, parameters: Mapping[str, float] | None = None, outputs: Sequence[str] = ()
) -> Definition:
    """The Definition that a formula alone gives: inputs are the names that nothing computes, in order of appearance;
    outputs those that are named, else the last result.

    Axes are said beside names (`x[*lead, cols]`). Where no name has any, and nothing is reduced or
    multiplied by @, all have the same shape.
    Raises UsageError where axes are missing.
    """
    formula = parse(text)
    given = dict(parameters or {})
    targets = {statement.target.name for statement in formula.statements}
    names = [one for one in _names(formula) if one not in targets and one not in given and one not in CONSTANTS]
    if not names:
        raise UsageError("The formula has no input: every name in it is computed or a parameter. Add one.")
    reduced = any(re.search(rf"\b{function}\s*\(", text) for function in OVER_AN_AXIS)
    missing = [one for one in names if one not in formula.shapes]
    multiplied = any("@" in line.split("#")[0] for line in text.splitlines())
    if missing and (reduced or multiplied or formula.shapes):
        first = missing[0]
        example = "a[*lead, k] @ b[k, n] + bias[n]" if multiplied else f"{first}[*lead, cols]"
        raise UsageError(
            f"The axes of {', '.join(missing)} are not known. Say them where a name stands first: "
            f"{example}; or make it a parameter: --parameter {first}=1.0"
        )
    inputs = tuple(Input(name=one, axes=_axes(one, formula.shapes.get(one, ("*shape",)))) for one in names)
    results = tuple(dict.fromkeys(outputs)) or (formula.statements[-1].target.name,)
    strange = [one for one in results if one not in targets]
    if strange:
        raise unknown("result of the formula", strange[0], sorted(targets))
    shapes = {one: formula.shapes.get(one) for one in results}
    return _checked(
        Definition(
            name=name,
            formula=formula,
            inputs=inputs,
            outputs={one: None if shape is None else _axes(one, shape) for one, shape in shapes.items()},
            parameters=given,
        )
    )


def read_definition(path: Path, name: str) -> Definition:
    """The Definition of a YAML file, for an operator called `name`. Raises UsageError that names the field."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} cannot be read: {error}. Give a YAML file: docs/forge.md shows one.") from error
    return definition_of(loaded(text, str(path)), name, str(path))


def loaded(text: str, where: str) -> Mapping[str, Any]:
    """The mapping that a YAML text holds; no tags, no objects, no aliases."""
    import yaml

    if len(text) > LONGEST_FILE:
        raise UsageError(f"{where} has {len(text)} letters; a definition has less than {LONGEST_FILE}. Shorten it.")
    try:
        # an alias of an alias of an alias grows without end
        if any(isinstance(token, yaml.AliasToken) for token in yaml.scan(text)):
            raise UsageError(f'{where} has an alias (*name). Quote shapes that begin with a star: "*lead cols".')
        content = yaml.safe_load(text)
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        mark = getattr(error, "problem_mark", None)
        place = f" line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        problem = getattr(error, "problem", None) or type(error).__name__
        raise UsageError(
            f'{where}{place}: no YAML: {problem}. Quote what has a colon or begins with a star: x: "*lead cols".'
        ) from error
    if not isinstance(content, dict):
        raise UsageError(f"{where} is no mapping of fields. Write for example: formula: out = silu(x)")
    return content


def definition_of(content: Mapping[str, Any], name: str, where: str) -> Definition:
    """The Definition that a mapping of fields says. Raises UsageError that names the field."""
    for key in content:
        if key not in FIELDS:
            raise unknown(f"field of a definition ({where})", str(key), FIELDS)
    if content.get("name", name) != name:
        raise UsageError(f"{where}: name is {content['name']!r}, and {name!r} was asked for. Let them agree.")
    if not isinstance(content.get("formula"), str):
        raise UsageError(f"{where}: formula is missing or no text. Write: formula: out = silu(x * scale + bias)")
    formula = parse(content["formula"].strip("\n"))
    tensors = _mapping(content, "inputs", where)
    if not tensors:
        raise UsageError(f'{where}: inputs is missing. Write a name and its axes: inputs: {{x: "*lead cols"}}')
    inputs = tuple(_input(str(key), value, where) for key, value in tensors.items())
    last = formula.statements[-1].target.name
    outputs = {
        str(key): _axes(str(key), _words(value, f"outputs.{key}", where)) if value is not None else None
        for key, value in (_mapping(content, "outputs", where) or {last: None}).items()
    }
    parameters: dict[str, float] = {}
    for key, value in _mapping(content, "parameters", where).items():
        parameters[str(key)] = number_of(str(key), value)
    dtypes = content.get("dtypes", list(DTYPES))
    if not isinstance(dtypes, list) or not dtypes or not set(map(str, dtypes)) <= set(DTYPES):
        raise UsageError(f"{where}: dtypes is {dtypes!r}. Give a list of {', '.join(DTYPES)}.")
    constraints = {str(key): str(value) for key, value in _mapping(content, "constraints", where).items()}
    target, rounds = content.get("target"), content.get("rounds")
    if target is not None and not number_of("target", target) > 0:
        raise UsageError(f"{where}: target is {target!r}. Give the speed-up that is asked for, above 0: target: 1.2")
    if rounds is not None and (not isinstance(rounds, int) or isinstance(rounds, bool) or not 1 <= rounds <= 100):
        raise UsageError(f"{where}: rounds is {rounds!r}. Give a whole number from 1 to 100: rounds: 5")
    definition = Definition(
        name=name,
        formula=formula,
        inputs=inputs,
        outputs=outputs,
        parameters=parameters,
        about=str(content.get("about", "")),
        source=str(content.get("source", "")),
        dtypes=tuple(map(str, dict.fromkeys(dtypes))),
        constraints=constraints,
        workloads=tuple(
            _workload(str(key), value, where) for key, value in _mapping(content, "workloads", where).items()
        ),
        kind=str(content.get("kind", "")),
        device=str(content.get("device", "")),
        target=None if target is None else number_of("target", target),
        rounds=rounds,
        requirements={str(key): str(value) for key, value in _mapping(content, "requirements", where).items()},
    )
    return _checked(definition)


def number_of(name: str, given: object) -> float:
    """A parameter's value. Raises UsageError for what is no finite number; YAML reads 1e-5 as text, this doesn't."""
    try:
        value = float(given) if isinstance(given, int | float | str) and not isinstance(given, bool) else math.nan
    except (ValueError, OverflowError):
        value = math.nan
    if not math.isfinite(value):
        raise UsageError(f"The parameter {name} is {given!r:.60}, no finite number. Give its default: {name}: 1.0")
    return value


def _input(name: str, value: object, where: str) -> Input:
    if isinstance(value, dict):
        strange = [str(key) for key in value if key not in ("shape", "domain", "about")]
        if strange:
            raise unknown(f"field of the input {name} ({where})", strange[0], ("shape", "domain", "about"))
        domain = str(value.get("domain", "any"))
        if domain not in DOMAINS:
            raise unknown(f"domain of {name} ({where})", domain, DOMAINS)
        axes = _axes(name, _words(value.get("shape"), f"inputs.{name}.shape", where))
        return Input(name=name, axes=axes, domain=domain, about=str(value.get("about", "")))
    return Input(name=name, axes=_axes(name, _words(value, f"inputs.{name}", where)))


def _words(value: object, field: str, where: str) -> tuple[str, ...]:
    if not isinstance(value, str):
        raise UsageError(f'{where}: {field} is {value!r:.60}, no shape. Write axes with spaces between: "*lead cols".')
    return tuple(value.replace(",", " ").split())


def _axes(name: str, axes: tuple[str, ...]) -> tuple[str, ...]:
    for axis in axes:
        if axis.lstrip("*") in TAKEN - {"rows", "cols", "row", "col", "n", "i", "r"}:
            raise UsageError(
                f"{name} has the axis {axis!r}, which means something in generated code. Choose another, e.g. cols."
            )
        if not _AXIS.fullmatch(axis):
            raise UsageError(
                f"{name} has the axis {axis!r}, which is no name for one. Use letters, digits and underscores: "
                f'"*lead cols".'
            )
    if len(set(axes)) != len(axes):
        raise UsageError(f"{name} has an axis twice: {' '.join(axes)}. Give each its own name.")
    return axes


def _workload(name: str, value: object, where: str) -> NamedWorkload:
    if not isinstance(value, dict) or not isinstance(value.get("axes"), dict):
        raise UsageError(
            f"{where}: workload {name} has no axes. Write: {name}: {{axes: {{lead: [4], cols: 768}}, source: ...}}"
        )
    axes: dict[str, int | tuple[int, ...]] = {}
    for axis, size in value["axes"].items():
        sizes = size if isinstance(size, list) else [size]
        if not all(isinstance(one, int) and not isinstance(one, bool) and one >= 0 for one in sizes):
            raise UsageError(
                f"{where}: workload {name}: {axis} is {size!r:.60}. Give a whole number, or a list of them."
            )
        axes[str(axis)] = tuple(sizes) if isinstance(size, list) else size
    scale = str(value.get("scale", "gpu"))
    if scale not in ("gpu", "laptop"):
        raise unknown(f"scale of the workload {name} ({where})", scale, ("gpu", "laptop"))
    source = str(value.get("source", "")).strip()
    if not source:
        raise UsageError(f"{where}: workload {name} has no source. Say which layer of which model this is.")
    return NamedWorkload(name=name, axes=axes, source=source, scale=scale)


def _mapping(content: Mapping[str, Any], field: str, where: str) -> Mapping[Any, Any]:
    value = content.get(field) or {}
    if not isinstance(value, dict):
        raise UsageError(f"{where}: {field} is {value!r:.60}, no mapping. Write names and values: {field}: {{a: b}}")
    return value


def _with_rank(workload: NamedWorkload, axes: set[str]) -> NamedWorkload:
    """The workload with a tuple of sizes for each `*name`, also where one number was given."""
    sizes = {
        name: (size,) if f"*{name}" in axes and isinstance(size, int) else size for name, size in workload.axes.items()
    }
    return replace(workload, axes=sizes)


def _checked(definition: Definition) -> Definition:
    """The definition, with names that all languages take, axes of one meaning, and domains where functions need one."""
    tensors = [item.name for item in definition.inputs]
    names = [*tensors, *definition.parameters, *definition.outputs]
    for name in names:
        if not _NAME.fullmatch(name) or name in TAKEN or name in FUNCTIONS or name in CONSTANTS:
            raise UsageError(
                f"{name!r} cannot name a tensor or a parameter: it means something in formulas or in generated code. "
                "Choose another, e.g. x or weight."
            )
    for name in set(tensors) & set(definition.parameters):
        raise UsageError(f"{name!r} is an input and a parameter. Rename one.")
    axes = {axis for item in definition.inputs for axis in item.axes}
    both = sorted(axis for axis in axes if f"*{axis}" in axes)
    if both:
        raise UsageError(f"{both[0]!r} is one axis in one shape and any number of axes in another. Rename one.")
    for name in [*names, *definition.parameters]:
        if name in {axis.lstrip("*") for axis in axes}:
            raise UsageError(f"{name!r} names an axis and a tensor or parameter. Rename one.")
    for name, shape in definition.outputs.items():
        strange = [axis for axis in shape or () if axis not in axes]
        if strange:
            raise UsageError(
                f"The output {name} has the axis {strange[0]!r}, which no input has. Known: {sorted(axes)}."
            )
    for name, shape in definition.formula.shapes.items():
        declared = next((item.axes for item in definition.inputs if item.name == name), definition.outputs.get(name))
        if declared != shape:
            raise UsageError(
                f"The formula gives {name} the axes [{', '.join(shape)}], the definition "
                f"[{', '.join(declared or ())}]. Say them once."
            )
    for one in definition.workloads:
        _sizes_checked(one, axes)
    return replace(
        definition,
        inputs=tuple(_with_domain(definition, item) for item in definition.inputs),
        workloads=tuple(_with_rank(one, axes) for one in definition.workloads),
    )


def _sizes_checked(workload: NamedWorkload, axes: set[str]) -> None:
    """Raises UsageError where a workload lacks an axis, has another one, or gives an axis several sizes."""
    known = sorted(axis.lstrip("*") for axis in axes)
    strange = [name for name in workload.axes if name not in known]
    if strange:
        raise unknown(f"axis of the workload {workload.name}", strange[0], known)
    missing = [name for name in known if name not in workload.axes]
    if missing:
        raise UsageError(f"The workload {workload.name} gives the axis {missing[0]!r} no size. Add {missing[0]}: 768.")
    several = [name for name, size in workload.axes.items() if not isinstance(size, int) and f"*{name}" not in axes]
    if several:
        raise UsageError(
            f"The workload {workload.name} gives several sizes for {several[0]!r}, which is one axis. Give a number, "
            f"or write *{several[0]} in the shapes for any number of axes."
        )


def _with_domain(definition: Definition, item: Input) -> Input:
    """An input under a logarithm or a root is positive, one that is divided by isn't 0, unless its author said more."""
    if item.domain != "any":
        return item
    program = definition.program()
    domain = "any"
    for value in program.values:
        under = [program.values[number] for number in value.arguments]
        if value.operation in ("log", "sqrt", "rsqrt") and under[0].text == item.name and under[0].operation == "read":
            domain = "positive"
        if value.operation == "div" and under[1].text == item.name and under[1].operation == "read":
            domain = "nonzero" if domain == "any" else domain
    return replace(item, domain=domain)


def _names(formula: Formula) -> list[str]:
    """Names in a formula's values, in order of appearance."""
    from opforge.forge.program.formula import Call, Expression, Name, Operation

    found: dict[str, None] = {}

    def walk(node: Expression) -> None:
        if isinstance(node, Name):
            found.setdefault(node.name)
        elif isinstance(node, Operation | Call):
            for one in node.arguments:
                walk(one)

    for statement in formula.statements:
        walk(statement.value)
    return list(found)
