"""The TileLang kernel of a product with its epilogue, on request: tiles behind masks, T.gemm where tensor cores fit."""

from __future__ import annotations

from opforge.forge.program.definition import Definition
from opforge.forge.program.families import Layout, operands_of
from opforge.forge.program.ir import Program
from opforge.forge.write.emit import TILELANG, call
from opforge.forge.write.product_files import sums_writer
from opforge.forge.write.tilelang_file import NAMES as ROW_NAMES, place_of, signature, size_of, tools_imported

NAMES = frozenset(
    {
        *ROW_NAMES,
        "cores",
        "near",
        "left",
        "right",
        "bx",
        "by",
        "bz",
        "in_row",
        "in_col",
        "in_term",
        "in_matrix",
        "factor",
    }
)
"""What else the kernel names."""
_HEAD = '''"""A tile of the product per block, its sums in registers until the formula met them: any size, any address.

moves     the left side cdiv(cols, block_n) times, the right side cdiv(rows, block_m) times
limits    tiles are loaded element by element behind masks: no TMA, and no pipeline
precision float32 operands in multiply-adds, for T.gemm would round them to TF32; 16-bit ones by T.gemm on a GPU
"""

'''


def tilelang_product(definition: Definition, program: Program, layout: Layout) -> tuple[str, str]:
    """The file's name and text."""
    of, out = operands_of(program), program.writes[0]
    *outer, column = out.axes
    several = len(layout.groups) > 2
    rows_axes = outer[-1:] if several else outer
    matrices = outer[:-1] if several else []
    others = [(name, axes) for name, axes in program.reads if name not in (of.a, of.b)]
    sizes = list(dict.fromkeys(axis for _, axes in program.reads for axis in axes))
    head = [f'{size_of(axis)} = T.dynamic("{size_of(axis)}", "int64")' for axis in sizes]
    head += [f"rows, cols, terms = {' * '.join(map(size_of, rows_axes))}, {size_of(column)}, {size_of(of.terms)}"]
    head += [f"matrices = {' * '.join(map(size_of, matrices))}"] * several
    head += ['kept, cores = storage(dtype, target), target != "c" and dtype != "float32"']
    head += ['factor, near = dtype if cores else "float32", T.alloc_local if target == "c" else T.alloc_shared']
    head += ["alloc, each = tile(target), loop(target)"]
    head += [f"{name} = T.float32({name})" for name, _ in program.parameters]
    head += ["block_m, block_n, block_k = (64, 64, 32) if cores else (32, 64, 16)", ""]
    for group, index in ((rows_axes, "in_row"), (matrices, "in_matrix")):
        for axis, found in _places(group, index):
            head += [f"def {place_of(axis)}({index}):", f"    return {found}", ""]
    groups = {"in_row": rows_axes, "in_matrix": matrices}

    def element(name: str, axes: tuple[str, ...], term: str = "") -> str:
        places = []
        for axis in axes:
            inside = next((index for index, group in groups.items() if axis in group), "")
            places.append(f"{place_of(axis)}({inside})" if inside else "in_col" if axis == column else term)
        return f"{name}[{', '.join(places)}]"

    shapes = dict(program.reads)
    a_at, b_at = (element(name, shapes[name], "in_term") for name in (of.a, of.b))
    for name, inner, read in ((of.a, "in_row", a_at), (of.b, "in_col", b_at)):
        head += [f"def {name}_at({name}, in_matrix, {inner}, in_term):"]
        head += [f"    element = {read}"]
        head += ["    return element if cores else to_float32(element, dtype, target)", ""]
    for name, axes in others:
        head += [f"def {name}_at({name}, in_matrix, in_row, in_col):"]
        head += [f"    return to_float32({element(name, axes)}, dtype, target)", ""]
    names = [name for name, _ in others]
    writer = sums_writer(program, TILELANG, {name: name for name in names}, {*NAMES, *names})
    text = writer.write([out.value])[0]
    head += [f"def {out.name}_of({', '.join(['sums', *names])}):", *(f"    {line}" for line in writer.lines)]
    head += [f"    return from_float32({text}, dtype, target)", ""]
    matrix = "bz" if several else "0"
    grid = ["T.ceildiv(cols, block_n)", "T.ceildiv(rows, block_m)", *(["matrices"] * several)]
    at = {"in_row": "by * block_m + i", "in_col": "bx * block_n + j"}

    def loaded(side: str, name: str, first: str, second: str, extents: str, inner: str, index: str) -> list[str]:
        """The lines that fill a tile of one side; zero beyond its edges."""
        limit = "rows" if inner == "in_row" else "cols"
        place = f"{side}[{first}, {second}]"
        return [
            f"for {first}, {second} in each({extents}):",
            f"    {place} = T.Cast(factor, 0)",
            f"    if both({at[inner]} < {limit}, step * block_k + at < terms):",
            f"        {place} = {name}_at({name}, {matrix}, {index}, step * block_k + at)",
        ]

    given = ["sums[i, j]", *(f"{name}_at({name}, {matrix}, {at['in_row']}, {at['in_col']})" for name in names)]
    stored = element(out.name, out.axes).replace("in_row", at["in_row"]).replace("in_col", at["in_col"])
    stored = stored.replace("(in_matrix)", f"({matrix})")
    body = [
        "left = near((block_m, block_k), factor)",
        "right = near((block_k, block_n), factor)",
        'sums = alloc((block_m, block_n), "float32")',
        "for i, j in each(block_m, block_n):",
        "    sums[i, j] = T.float32(0)",
        "for step in T.serial(T.ceildiv(terms, block_k)):",
        *(f"    {line}" for line in loaded("left", of.a, "i", "at", "block_m, block_k", "in_row", at["in_row"])),
        *(f"    {line}" for line in loaded("right", of.b, "at", "j", "block_k, block_n", "in_col", at["in_col"])),
        "    if cores:",
        "        T.gemm(left, right, sums)",
        "    else:",
        "        for at in T.serial(block_k):",
        "            for i, j in each(block_m, block_n):",
        "                sums[i, j] += left[i, at] * right[at, j]",
        "for i, j in each(block_m, block_n):",
        f"    if both({at['in_row']} < rows, {at['in_col']} < cols):",
        *call(f"        {stored} = {out.name}_of", given, 8).replace("                ", "        ", 1).split("\n"),
    ]
    blocks = ", ".join(["bx", "by", *["bz"] * several])
    function = ["    @T.prim_func", signature(definition, program)]
    function += [*call("with T.Kernel", [*grid, "threads=128"], 8, f" as ({blocks}):").split("\n")]
    function += [f"            {line}" for line in body]
    return "tilelang_product.py", (
        _HEAD
        + "import tilelang.language as T\n\n"
        + tools_imported(head, body)
        + f'\nSUPPORTS = {{"an_operand_to_point_at": "{of.terms} > 0"}}\n\n\n'
        + call("def program", ["*", "dtype", "target", *dict(program.parameters)], 0, ":")
        + "\n"
        + "".join(f"    {line}".rstrip() + "\n" for line in head)
        + "\n".join(function)
        + f"\n\n    return {definition.name}\n"
    )


def _places(axes: list[str] | tuple[str, ...], index: str) -> list[tuple[str, str]]:
    """(axis, place along it) of axes that lie one after another, from an index over all of them."""
    found = []
    for at, axis in enumerate(axes):
        divided = "".join(f" // {size_of(later)}" for later in reversed(axes[at + 1 :]))
        found.append((axis, f"{index}{divided}" + (f" % {size_of(axis)}" if at else "")))
    return found
