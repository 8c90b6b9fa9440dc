"""Which family generates a program, and how its axes lie in memory: elements with broadcasting, or whole rows."""

from __future__ import annotations

from dataclasses import dataclass

from opforge.core.language.errors import UsageError
from opforge.forge.program.ir import Program

WAY_OUT = "Write it by hand: opforge new NAME makes a folder that runs as it stands."


@dataclass(frozen=True, kw_only=True)
class Layout:
    """How a program's axes are walked.

    family   "elementwise", "rows", or "product": one product of two inputs, and what is done to its sums
    groups   the axes of the largest output or input in order of memory, neighbours that every tensor has side by side
             made one; the last group is the columns of a tile, or of a row. Of a product those of its result: groups of
             matrices (none where the right side is one matrix), rows, columns
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
    reductions = program.along
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
    over = {value.over for value in program.along}
    last = program.axes[-1]
    if over != {last} or last.startswith("*"):
        raise UsageError(
            f"Reductions over {', '.join(sorted(over))} are not generated: rows are reduced or scanned along one axis, "
            f"the last in memory and not a *name (here {last}). {WAY_OUT}"
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
    """The operands of a product, a[*outer, terms] and b, which lies as [..., terms, cols] or [..., cols, terms].

    dot   the number of the product's value
    """

    dot: int
    a: str
    b: str
    terms: str
    by_columns: bool


def operands_of(program: Program) -> Operands:
    """The Operands of a program's one product. Raises UsageError where it is more than that."""
    found = [number for number, value in enumerate(program.values) if value.over]
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
    matrix = shapes[b][-2:]
    several = len(shapes[b]) > 2
    own = shapes[a][-2:-1] if several else shapes[a][:-1]
    if len(shapes[a]) < 2 or len(matrix) < 2 or value.over not in matrix or set(own) & set(shapes[b]):
        raise UsageError(
            f"{a}[{', '.join(shapes[a])}] @ {b}[{', '.join(shapes[b])}] is not generated: the last two axes of "
            "the right side are the columns and the last axis of the left side, which has its rows before that. Axes "
            f"of several matrices stand before these. {WAY_OUT}"
        )
    if any(axis.startswith("*") for axis in (*matrix, *(own if several else ()))) or set(matrix) & set(shapes[a][:-1]):
        raise UsageError(
            f"{b} has an axis of any rank, or of the left side, where a product of matrices has rows or columns. "
            f"{WAY_OUT}"
        )
    return Operands(dot=found[0], a=a, b=b, terms=value.over, by_columns=shapes[b][-1] == value.over)


def _product(program: Program) -> Layout:
    of = operands_of(program)
    shapes = dict(program.reads)
    several = len(shapes[of.b]) > 2
    if len(program.writes) > 1:
        raise UsageError(f"A product with several outputs is not generated. Make an operator of each. {WAY_OUT}")
    column = next(axis for axis in shapes[of.b][-2:] if axis != of.terms)
    rows = shapes[of.a][-2:-1] if several else shapes[of.a][:-1]
    apart = (*shapes[of.a][:-2], *shapes[of.b][:-2]) if several else ()
    matrices = tuple(axis for axis in program.axes if axis in apart)
    wanted = (*matrices, *rows, column)
    write = program.writes[0]
    if of.terms in program.values[write.value].axes:
        raise UsageError(
            f"{write.name} has the axis {of.terms}, over which @ sums: something beside the product has it too. "
            f"Give that axes of [{', '.join(wanted)}]. {WAY_OUT}"
        )
    if write.axes != wanted or program.values[write.value].axes != program.values[of.dot].axes:
        raise UsageError(f"{write.name} needs the axes of the product: {write.name}[{', '.join(wanted)}]. {WAY_OUT}")
    known = {**shapes, write.name: write.axes}
    groups: list[list[str]] = []
    for axis in matrices:
        if groups and all((axis in has) == (groups[-1][0] in has) for has in known.values()):
            groups[-1].append(axis)
        else:
            groups.append([axis])
    whole = (*map(tuple, groups), rows, (column,))
    tensors: dict[str, tuple[int, ...]] = {}
    for name, has in known.items():
        mine = tuple(number for number, group in enumerate(whole) if set(group) <= set(has))
        covered = [axis for number in mine for axis in whole[number]]
        sides = {of.a: [*covered, of.terms], of.b: [*covered[:-1], *shapes[of.b][-2:]]}.get(name, covered)
        if list(has) != sides or not has:
            raise UsageError(
                f"{name} must have axes of [{', '.join(wanted)}] in this order, and all or none of "
                f"[{', '.join(rows)}], to meet a product; it has [{', '.join(has)}]. {WAY_OUT}"
            )
        tensors[name] = mine
    return Layout(family="product", groups=whole, tensors=tensors)


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
