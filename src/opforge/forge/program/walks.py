"""A program's axes and values walked: where a tensor's elements lie, as text; what a row has one of; which inputs a
value needs.
"""

from __future__ import annotations

from opforge.forge.program.families import Layout
from opforge.forge.program.ir import Program


def extent(layout: Layout, group: int) -> str:
    """The name of a group's size in generated code: n_batch, n_height_width."""
    return "n_" + "_".join(axis.lstrip("*") for axis in layout.groups[group])


def place(layout: Layout, group: int) -> str:
    """The name of the index along a group: at_batch."""
    return "at_" + "_".join(axis.lstrip("*") for axis in layout.groups[group])


def places(layout: Layout, tensors: list[str]) -> list[tuple[str, str]]:
    """(name, expression over `row`) of each index along an outer group that one of `tensors` needs.

    One division after another from the left: a product of sizes might leave 32 bits.
    """
    outer = range(layout.columns)
    needed = {group for name in tensors for group in _single(layout, name)}
    found = []
    for group in outer:
        if group in needed:
            divided = "".join(f" // {extent(layout, later)}" for later in range(layout.columns - 1, group, -1))
            text = f"row{divided}" + (f" % {extent(layout, group)}" if group else "")
            found.append((place(layout, group), text))
    return found


def matrices(layout: Layout, index: str) -> list[tuple[str, str]]:
    """(name, expression over `index`) of each place along the groups of a product's matrices that a tensor lacking some
    of them needs.
    """
    batch = layout.columns - 1
    lacking = [has for has in layout.tensors.values() if 0 < len([one for one in has if one < batch]) < batch]
    needed = {group for has in lacking for group in has if group < batch}
    found = []
    for group in range(batch):
        if group in needed:
            divided = "".join(f" // {extent(layout, later)}" for later in range(batch - 1, group, -1))
            found.append((place(layout, group), f"{index}{divided}" + (f" % {extent(layout, group)}" if group else "")))
    return found


def matrix_of(layout: Layout, name: str, index: str) -> str:
    """The number of a tensor's matrix (or row, or column) for the product's matrix `index`; "" where it has one."""
    batch = layout.columns - 1
    has = [group for group in layout.tensors[name] if group < batch]
    if len(has) == batch:
        return index if has else ""
    terms = [
        place(layout, group) + "".join(f" * {extent(layout, later)}" for later in has if later > group) for group in has
    ]
    text = " + ".join(terms)
    return f"({text})" if len(terms) > 1 else text


def row_offset(layout: Layout, name: str) -> str:
    """The offset of the row's first element in a tensor, "" for none; 64 bits wide where `row` is."""
    has = layout.tensors[name]
    if set(range(layout.columns)) <= set(has):
        return f"row * {extent(layout, layout.columns)}" if layout.columns in has else "row"
    terms = []
    for group in _single(layout, name):
        strides = "".join(f" * {extent(layout, later)}" for later in has if later > group)
        terms.append(f"{place(layout, group)}{strides}")
    return " + ".join(terms)


def along(layout: Layout, name: str) -> bool:
    """Whether a tensor has the columns."""
    return layout.columns in layout.tensors[name]


def sizes_from(program: Program, layout: Layout, shape: str) -> list[tuple[str, str]]:
    """(name, expression) of each group's size, from the collapsed shape of a tensor that has all axes."""
    axes = list(program.axes)
    return [
        (extent(layout, number), " * ".join(shape.replace("AXIS", str(axes.index(axis))) for axis in group))
        for number, group in enumerate(layout.groups)
    ]


def _single(layout: Layout, name: str) -> list[int]:
    """The outer groups whose index a tensor needs by itself: none where it has all of them."""
    has = [group for group in layout.tensors[name] if group < layout.columns]
    return [] if len(has) == layout.columns else has


def row_values(program: Program, root: int, inner: str) -> list[int]:
    """The values below `root` that a row has one of, nearest first, what they are made of left out."""
    found: dict[int, None] = {}
    waiting, seen = [root], set[int]()
    while waiting:
        number = waiting.pop()
        if number in seen:
            continue
        seen.add(number)
        value = program.values[number]
        if inner not in value.axes and value.operation not in ("const", "parameter"):
            found.setdefault(number)
        else:
            waiting += value.arguments
    return sorted(found)


def sources(program: Program, names: dict[str, str]) -> dict[int, str]:
    """What stands for the inputs in `names`, by their values' numbers."""
    return {
        number: names[value.text]
        for number, value in enumerate(program.values)
        if value.operation == "read" and value.text in names
    }


def needed(program: Program, root: int, names: dict[str, str], reads: list[str]) -> list[str]:
    """The inputs with elements of their own below `root`, in order of arguments; reductions stand for themselves."""
    found, waiting, seen = set[str](), [root], set[int]()
    while waiting:
        number = waiting.pop()
        if number in seen:
            continue
        seen.add(number)
        value = program.values[number]
        if value.operation == "read" and value.text in names:
            found.add(value.text)
        if not value.reduces:
            waiting += value.arguments
    return [name for name in reads if name in found]
