"""Which family generates a program, and how its axes lie in memory: elements with broadcasting, or whole rows."""

from __future__ import annotations

from dataclasses import dataclass

from opforge.core.errors import UsageError
from opforge.forge.ir import Program

WAY_OUT = "Write it by hand: opforge new NAME makes a folder that runs as it stands."


@dataclass(frozen=True, kw_only=True)
class Layout:
    """How a program's axes are walked.

    family   "elementwise", "rows", or "product": one product of two inputs, and what is done to its sums
    groups   the axes of the largest output or input in order of memory, neighbours that every tensor has side by side
             made one; the last group is the columns of a tile, or of a row
    tensors  name -> the groups that it has (numbers), for inputs and outputs
    """

    family: str
    groups: tuple[tuple[str, ...], ...]
    tensors: dict[str, tuple[int, ...]]

    @property
    def columns(self) -> int:
        """The number of the last group."""
        return len(self.groups) - 1


def layout_of(program: Program) -> Layout:
    """The Layout of a program. Raises UsageError, with the reason, for one that no family generates yet."""
    reductions = program.reductions
    axes = program.axes
    if sum(axis.startswith("*") for axis in axes) > 1:
        raise UsageError(f"Two axes of any rank ({', '.join(axes)}) in one operator are not generated. {WAY_OUT}")
    if any(value.operation == "dot" for value in reductions):
        return _product(program)
    for name, has in (*program.reads, *((write.name, write.axes) for write in program.writes)):
        if not has:
            raise UsageError(f"{name} has no axes. Make it a parameter, or give it an axis. {WAY_OUT}")
        if list(has) != [axis for axis in axes if axis in has]:
            raise UsageError(
                f"{name} has its axes in another order ({', '.join(has)}) than the rest ({', '.join(axes)}). "
                f"Transposed inputs are not generated yet. {WAY_OUT}"
            )
    for write in program.writes:
        has = program.values[write.value].axes
        if has != write.axes:
            missing = [axis for axis in write.axes if axis not in has]
            raise UsageError(
                f"{write.name} does not depend on the axis {missing[0]} of its shape. Remove the axis, or add an input "
                "that has it."
            )
    return _rows(program) if reductions else _elements(program)


def _elements(program: Program) -> Layout:
    shapes = {write.axes for write in program.writes}
    if len(shapes) > 1 or shapes != {program.axes}:
        raise UsageError(
            f"Outputs of several shapes without a reduction are not generated: {sorted(map(' '.join, shapes))}. Make "
            f"an operator of each. {WAY_OUT}"
        )
    return _grouped(program, "elementwise", keep_last=False)


def _rows(program: Program) -> Layout:
    over = {value.over for value in program.reductions}
    last = program.axes[-1]
    if over != {last} or last.startswith("*"):
        raise UsageError(
            f"Reductions over {', '.join(sorted(over))} are not generated: rows are reduced over one axis, the last in "
            f"memory and not a *name (here {last}). {WAY_OUT}"
        )
    layout = _grouped(program, "rows", keep_last=True)
    if len(layout.groups) > 2 or len(layout.groups) == 1:
        raise UsageError(
            f"Rows need inputs that have all of the axes before {last}, or none of them, and at least one axis there "
            f'("*lead {last}" takes any number); here: {_described(program)}. {WAY_OUT}'
        )
    if not any(groups == (0, 1) for name, groups in layout.tensors.items() if name in dict(program.reads)):
        raise UsageError(f"Rows need an input that has every axis; here: {_described(program)}. {WAY_OUT}")
    return layout


@dataclass(frozen=True, kw_only=True)
class Operands:
    """The operands of a product, a[*outer, terms] and b, which lies as [terms, cols] or [cols, terms].

    dot   the number of the product's value
    """

    dot: int
    a: str
    b: str
    terms: str
    by_columns: bool


def operands_of(program: Program) -> Operands:
    """The Operands of a program's one product. Raises UsageError where it is more than that."""
    found = [number for number, value in enumerate(program.values) if value.reduces]
    value = program.values[found[0]]
    sides = [program.values[number] for number in value.arguments]
    uses = program.uses()
    if len(found) > 1 or any(
        side.operation != "read" or uses[at] > 1 for side, at in zip(sides, value.arguments, strict=True)
    ):
        raise UsageError(
            "A product is generated of two inputs that stand nowhere else, with no other reduction beside it: "
            f"c = relu(a @ b + bias). Make an operator of each part. {WAY_OUT}"
        )
    shapes = dict(program.reads)
    a, b = (side.text for side in sides)
    if len(shapes[a]) < 2 or len(shapes[b]) != 2 or set(shapes[a]) & set(shapes[b]) != {value.over}:
        raise UsageError(
            f"{a}[{', '.join(shapes[a])}] @ {b}[{', '.join(shapes[b])}] is not generated: the right side has two axes, "
            f"one of which is the last of the left side. {WAY_OUT}"
        )
    if shapes[b][0].startswith("*") or shapes[b][1].startswith("*"):
        raise UsageError(f"{b} has an axis of any rank, which the right side of @ cannot have. {WAY_OUT}")
    return Operands(dot=found[0], a=a, b=b, terms=value.over, by_columns=shapes[b][1] == value.over)


def _product(program: Program) -> Layout:
    of = operands_of(program)
    shapes = dict(program.reads)
    outer = shapes[of.a][:-1]
    if len(program.writes) > 1:
        raise UsageError(f"A product with several outputs is not generated. Make an operator of each. {WAY_OUT}")
    column = next(axis for axis in shapes[of.b] if axis != of.terms)
    for write in program.writes:
        if of.terms in program.values[write.value].axes:
            raise UsageError(
                f"{write.name} has the axis {of.terms}, over which @ sums: something beside the product has it too. "
                f"Give that the axes [{', '.join((*outer, column))}], [{', '.join(outer)}] or [{column}]. {WAY_OUT}"
            )
        if write.axes != (*outer, column) or program.values[write.value].axes != program.values[of.dot].axes:
            raise UsageError(
                f"{write.name} needs the axes of the product: {write.name}[{', '.join((*outer, column))}]. {WAY_OUT}"
            )
    tensors: dict[str, tuple[int, ...]] = {of.a: (0,), of.b: (1,)}
    tensors.update({write.name: (0, 1) for write in program.writes})
    for name, has in program.reads:
        if name not in tensors:
            if has not in (outer, (column,), (*outer, column)):
                raise UsageError(
                    f"{name} must have the axes [{', '.join((*outer, column))}], [{', '.join(outer)}] or [{column}] to "
                    f"meet a product; it has [{', '.join(has)}]. {WAY_OUT}"
                )
            tensors[name] = (*([0] if has[0] == outer[0] else []), *([1] if has[-1] == column else []))
    return Layout(family="product", groups=(outer, (column,)), tensors=tensors)


def _grouped(program: Program, family: str, *, keep_last: bool) -> Layout:
    shapes = {**dict(program.reads), **{write.name: write.axes for write in program.writes}}
    groups: list[list[str]] = []
    for axis in program.axes:
        alike = groups and all((axis in has) == (groups[-1][0] in has) for has in shapes.values())
        if alike and not (keep_last and axis == program.axes[-1]):
            groups[-1].append(axis)
        else:
            groups.append([axis])
    tensors = {
        name: tuple(number for number, group in enumerate(groups) if group[0] in has) for name, has in shapes.items()
    }
    return Layout(family=family, groups=tuple(tuple(group) for group in groups), tensors=tensors)


def _described(program: Program) -> str:
    return "; ".join(f"{name}[{', '.join(axes)}]" for name, axes in program.reads)
