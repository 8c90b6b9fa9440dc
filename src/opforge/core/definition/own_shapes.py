"""Shapes of one's own: `lead=2x3,cols=1000` is a workload, and that text is its name.

A record, a baseline and a history keep the name. Whoever reads it again gets the same workload (`workload_named`), so
nothing else has to be kept of a shape that no op.py declares.
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from pathlib import Path

from opforge.core.definition.operator import Case, Operator, ScalarValue, Workload
from opforge.core.definition.shapes import Axes, AxisValue, tokens
from opforge.core.language.errors import UsageError

SOURCE = "a shape of one's own"
FILES = (".json", ".csv")
LONGEST_NUMBER = 15
"""Digits: more is no size of anything, and not exact as a float."""
MOST_SHAPES = 1000
"""Shapes in one file: at a second each for a few implementations, an hour."""
NONE = "()"
"""A variadic axis that stands for no axes at all."""


def variadic(operator: Operator) -> frozenset[str]:
    """The axes whose value is several sizes: those that stand for any number of axes (`lead` of `"*lead cols"`), and
    those that have a size for each tensor of a list.
    """
    specs = (*operator.inputs, *operator.outputs)
    named = {token[1:] for spec in specs for token in tokens(spec.shape) if token.startswith("*")}
    return frozenset(named | set(operator.list_axes))


def axis_text(value: AxisValue) -> str:
    """An axis value as a shape is written: 1000, 2x3, or () for no axes.

    >>> axis_text((2, 3)), axis_text(1000), axis_text(())
    ('2x3', '1000', '()')
    """
    if not isinstance(value, tuple):
        return str(value)
    return "x".join(map(str, value)) or NONE


def shape_name(operator: Operator, axes: Axes, scalars: Mapping[str, ScalarValue], layout: str = "contiguous") -> str:
    """The one name of a shape: the free axes in the operator's order, the parameters that are not at their default, the
    layout where it is not contiguous.
    """
    defaults = {scalar.name: scalar.default for scalar in (*operator.scalars, *operator.presence)}
    parts = [f"{name}={axis_text(axes[name])}" for name in operator.free_axes]
    parts += [f"{name}={scalars[name]}" for name in defaults if scalars.get(name, defaults[name]) != defaults[name]]
    parts += [f"layout={layout.replace(' ', '+')}"] if layout != "contiguous" else []
    return ",".join(parts)


def parse_shape(operator: Operator, text: str) -> Workload:
    """The workload that `lead=2x3,cols=1000` means. Parameters (`eps=1e-6`) and `layout=transposed` may stand beside
    the axes; derived axes may be left out. Raises UsageError that names the axis, those there are, and an example.
    """
    given: dict[str, str] = {}
    for part in text.split(","):
        name, equals, value = (word.strip() for word in part.partition("="))
        if not equals or not name or not value:
            raise UsageError(f"{part.strip()!r} in --shape {text} is not NAME=SIZE. {_help(operator)}")
        if name in given:
            raise UsageError(f"--shape {text} gives {name} twice. {_help(operator)}")
        given[name] = value
    return _workload(operator, given, text)


def workload_named(operator: Operator, name: str) -> Workload | None:
    """The operator's workload of this name, or the shape of one's own that the name is; None for any other name.
    Raises UsageError where it is a shape that does not fit the operator.
    """
    declared = next((workload for workload in operator.workloads if workload.name == name), None)
    return declared or (parse_shape(operator, name) if "=" in name else None)


def shapes_of(operator: Operator, given: Iterable[str]) -> tuple[Workload, ...]:
    """The workloads of `--shape` values, each once: a shape, or a .json or .csv file of shapes. Raises UsageError."""
    shapes: dict[str, Workload] = {}
    for text in given:
        for workload in _of_file(operator, Path(text)) if text.endswith(FILES) else [parse_shape(operator, text)]:
            shapes[workload.name] = workload
    return tuple(shapes.values())


def ensure_taken(operator: Operator, workload: Workload, dtypes: Iterable[str] = ()) -> None:
    """Raises UsageError, one sentence with the constraint, where the operator takes the shape in none of the dtypes
    (all of its own where none are given).
    """
    asked = [dtype for dtype in operator.dtypes if dtype in (tuple(dtypes) or operator.dtypes)]
    scalars = operator.scalar_values(workload.scalars)
    broken = {dtype: operator.violated(workload.axes, dtype, scalars) for dtype in asked}
    first = next(iter(broken.values()), None)
    if first is not None and all(broken.values()):
        raise UsageError(
            f"{operator.name} does not take {workload.name} in {' or '.join(asked)}: {first.about or first.name} "
            f"({first.expression}). Choose sizes for which that holds, e.g. --shape {example(operator)}"
        )


def example(operator: Operator) -> str:
    """A shape of this operator, as one writes it: that of its first workload or case."""
    calls: tuple[Workload | Case, ...] = (*operator.workloads, *operator.cases)
    if not calls:
        return ",".join(f"{name}={'2x3' if name in variadic(operator) else 128}" for name in operator.free_axes)
    return shape_name(operator, calls[0].axes, {})


def _help(operator: Operator) -> str:
    several = variadic(operator)
    axes = ", ".join(f"*{name}" if name in several else name for name in operator.free_axes)
    parameters = ", ".join(scalar.name for scalar in (*operator.scalars, *operator.presence))
    return (
        f"Axes of {operator.name}: {axes}{f'; parameters: {parameters}' if parameters else ''}. "
        f"Example: --shape {example(operator)}"
    )


def _workload(operator: Operator, given: Mapping[str, str], text: str) -> Workload:
    several, scalars_known = (
        variadic(operator),
        {scalar.name: scalar for scalar in (*operator.scalars, *operator.presence)},
    )
    axes: dict[str, AxisValue] = {}
    scalars: dict[str, ScalarValue] = {}
    layout = "contiguous"
    for name, value in given.items():
        if name in operator.axes:
            axes[name] = _size(operator, name, value, name in several)
        elif name in scalars_known:
            scalars[name] = _parameter(operator, name, value, scalars_known[name].default)
        elif name == "layout":
            layout = value.replace("+", " ")
        else:
            close = get_close_matches(name, (*operator.axes, *scalars_known), n=1)
            near = f" Did you mean {close[0]!r}?" if close else ""
            raise UsageError(f"{operator.name} has no axis {name!r} (--shape {text}).{near} {_help(operator)}")
    missing = [name for name in operator.free_axes if name not in axes]
    if missing:
        raise UsageError(f"--shape {text} leaves out {', '.join(missing)}. {_help(operator)}")
    _ensure_layout(operator, layout)
    values = operator.scalar_values(scalars)
    whole = operator.completed({name: axes[name] for name in operator.free_axes}, values)
    for name in operator.derived:
        if axes.get(name, whole[name]) != whole[name]:
            raise UsageError(
                f"{name}={axis_text(axes[name])} does not fit: it follows from the others and is "
                f"{axis_text(whole[name])}. Leave it out. {_help(operator)}"
            )
    return Workload(
        name=shape_name(operator, whole, values, layout),
        axes=whole,
        source=SOURCE,
        scalars={name: value for name, value in scalars.items() if value != scalars_known[name].default},
        layout=layout,
    )


def _size(operator: Operator, name: str, value: str, several: bool) -> AxisValue:
    sizes = [] if value == NONE else value.split("x")
    if any(len(size) > LONGEST_NUMBER for size in sizes):
        raise UsageError(f"{name}={value[:40]}… is too large for a size. {_help(operator)}")
    if any(not re.fullmatch(r"\d+", size, re.ASCII) for size in sizes):
        form = "sizes joined by x, as in 2x3" if several else "a whole number, as in 1000"
        raise UsageError(f"{name}={value!r} is no size: write {form}. {_help(operator)}")
    if several:
        return tuple(int(size) for size in sizes)
    if len(sizes) != 1:
        raise UsageError(f"{name}={value} gives {len(sizes)} sizes, and {name} is one axis. {_help(operator)}")
    return int(sizes[0])


def _parameter(operator: Operator, name: str, value: str, default: ScalarValue) -> ScalarValue:
    try:
        if isinstance(default, bool):
            return {"true": True, "false": False}[value.lower()]
        return type(default)(value)
    except (ValueError, KeyError):
        raise UsageError(
            f"{name}={value!r} is no {type(default).__name__}; its default is {default!r}. {_help(operator)}"
        ) from None


def _ensure_layout(operator: Operator, layout: str) -> None:
    words = layout.split()
    strange = [word for word in words if word not in LAYOUTS]
    if strange or len(words) not in (1, len(operator.inputs)):
        raise UsageError(
            f"layout={layout.replace(' ', '+')} is no layout of {operator.name}. Write one of {', '.join(LAYOUTS)}, or "
            f"one for each of its {len(operator.inputs)} inputs, joined by +."
        )


LAYOUTS = ("contiguous", "transposed", "sliced", "strided", "misaligned", "expanded", "channels_last")
"""How inputs may lie in memory; `runner` makes them so."""


def _of_file(operator: Operator, path: Path) -> list[Workload]:
    """The shapes of a CSV with a column per axis, of a JSON list of objects or texts, or of an object with such a list
    for each operator.
    """
    text = path.read_text(encoding="utf-8-sig")
    rows: list[Mapping[str, str] | str] = []
    if path.suffix == ".csv":
        for row in csv.DictReader(io.StringIO(text)):
            rows.append({str(key).strip(): str(item).strip() for key, item in row.items() if key and item})
    else:
        try:
            data = json.loads(text)
        except ValueError as error:
            raise UsageError(f"{path} is no JSON: {error}. {_help_file(operator)}") from None
        if isinstance(data, dict) and data:
            data = _of_operator(operator, path, data)
        if not isinstance(data, list) or not all(isinstance(item, dict | str) for item in data):
            raise UsageError(f"{path} holds no list of shapes. {_help_file(operator)}")
        rows = [item if isinstance(item, str) else {key: _as_text(v) for key, v in item.items()} for item in data]
    if not rows:
        raise UsageError(f"{path} holds no shape. {_help_file(operator)}")
    if len(rows) > MOST_SHAPES:
        raise UsageError(f"{path} holds {len(rows)} shapes, and {MOST_SHAPES} is the most. Split it into several.")
    shapes = []
    for number, entry in enumerate(rows, 1):
        try:
            shapes.append(
                parse_shape(operator, entry)
                if isinstance(entry, str)
                else _workload(operator, entry, ",".join(f"{key}={value}" for key, value in entry.items()))
            )
        except UsageError as error:
            raise UsageError(f"{path}, shape {number}: {error}") from None
    return shapes


def operators_of(given: Iterable[str]) -> tuple[str, ...]:
    """The operators that files of shapes name, as `opforge model analyse --workloads` writes them: an object with a
    list of shapes for each. Other values of `--shape` name none.
    """
    names: dict[str, None] = {}
    for text in given:
        path = Path(text)
        if path.suffix == ".json" and path.is_file():
            try:
                data = json.loads(path.read_text(encoding="utf-8-sig"))
            except ValueError:
                continue  # whoever reads its shapes says what is wrong
            names |= dict.fromkeys(data) if isinstance(data, dict) else {}
    return tuple(names)


def _of_operator(operator: Operator, path: Path, data: Mapping[str, object]) -> object:
    """An operator's own shapes in a file that has those of several."""
    if operator.name not in data:
        raise UsageError(
            f"{path} has no shapes of {operator.name}. It has those of: {', '.join(data) or 'none'}. Name one of "
            "them, or leave the name away for all."
        )
    return data[operator.name]


def _as_text(value: object) -> str:
    return axis_text(tuple(value)) if isinstance(value, list) else str(value)


def _help_file(operator: Operator) -> str:
    shape = example(operator)
    return f'Write ["{shape}"], or a CSV whose first line is {",".join(operator.free_axes)}.'
