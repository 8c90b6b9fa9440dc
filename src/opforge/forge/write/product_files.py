"""Kernels of a product with its epilogue, `c = relu(a @ b + bias)`, in Triton and C++, and the cases that ask them."""

from __future__ import annotations

from collections.abc import Collection

from opforge.core.definition.shapes import AxisValue
from opforge.forge.program.definition import TAKEN, Definition
from opforge.forge.program.families import Layout, operands_of
from opforge.forge.program.ir import Program
from opforge.forge.program.walks import extent, matrices, matrix_of
from opforge.forge.write.cpp_file import cpp_text
from opforge.forge.write.emit import CPP, TRITON, Dialect, Writer, call
from opforge.forge.write.triton_file import functions_imported

_SPACE = """SPACE = {
    "BLOCK_M": (16, 32, 64, 128, 256),
    "BLOCK_N": (32, 64, 128, 256),
    "BLOCK_K_BYTES": (64, 128, 256),
    "GROUP": (1, 4, 8, 16),
    "num_warps": (4, 8),
    "num_stages": (2, 3, 4),
}
LIMITS = {
    "stages_fit_shared_memory": "(BLOCK_M + BLOCK_N) * BLOCK_K_BYTES * num_stages <= shared_bytes_per_block",
    "sums_fit_registers": "BLOCK_M * BLOCK_N <= 4096 * num_warps",
    "every_warp_has_a_tile": "BLOCK_M * BLOCK_N >= 256 * num_warps",
}
DEFAULT = {"BLOCK_M": 64, "BLOCK_N": 64, "BLOCK_K_BYTES": 128, "GROUP": 8, "num_warps": 4, "num_stages": 3}
"""


def triton_product(definition: Definition, program: Program, layout: Layout) -> dict[str, str]:
    """The Triton file's name and text."""
    return {"triton_product.py": functions_imported(_triton(definition, program, layout))}


def cpp_product(definition: Definition, program: Program, layout: Layout) -> dict[str, str]:
    """The C++ file's name and text."""
    return {"cpp_product.cpp": _cpp(definition, program, layout)}


def product_cases(program: Program, layout: Layout) -> list[tuple[str, dict[str, AxisValue], str, str, str]]:
    """Cases of a product: name, sizes, why, a distribution, a layout of memory."""
    *outer, column = program.writes[0].axes
    terms = operands_of(program).terms
    several = len(layout.groups) > 2

    def sizes(rows: int, cols: int, depth: int, lead: int = 1) -> dict[str, AxisValue]:
        found: dict[str, AxisValue] = {axis.lstrip("*"): lead for axis in outer}
        last = outer[-1].lstrip("*")
        found[last] = (lead, rows) if outer[-1].startswith("*") else rows
        for at, axis in enumerate(outer[:-1]):
            # matrices of several axes have different sizes there, so that swapped ones show
            size = lead + at if several and lead > 1 else lead
            found[axis.lstrip("*")] = (size,) if axis.startswith("*") else size
        return {**found, column: cols, terms: depth}

    of_matrices = [
        ("many_matrices", sizes(5, 7, 6, 17), "more matrices than threads, each smaller than a block", "", ""),
        ("no_matrix", sizes(5, 7, 6, 0), "no matrix at all", "", ""),
    ]
    return of_matrices * several + [
        ("one_element", sizes(1, 1, 1), "the smallest call: all of it is tail", "", ""),
        ("odd", sizes(65, 67, 33, 3), "one past and one short of blocks, odd sizes elsewhere", "", ""),
        ("one_row", sizes(1, 131, 129), "a vector by a matrix: most of a block of rows is tail", "", ""),
        ("one_column", sizes(37, 1, 70), "a single column", "", ""),
        ("one_term", sizes(33, 31, 1), "sums of one product", "", ""),
        ("deep", sizes(3, 5, 1031), "a prime number of terms, many steps", "", ""),
        ("empty_rows", sizes(0, 5, 7), "no row at all", "", ""),
        ("empty_columns", sizes(3, 0, 7), "no column at all", "", ""),
        ("tiny", sizes(17, 19, 23), "values near 0", "tiny", ""),
        ("large", sizes(17, 19, 23), "sums that leave float16", "large", ""),
        ("offset", sizes(17, 19, 65), "terms of one sign, whose sum grows", "offset", ""),
        # of rows in float16 alone: the square of float32's largest number overflows in the middle of a sum
        ("special", sizes(17, 19, 23), "NaN and infinities go where the formula takes them", "special", ""),
        ("misaligned", sizes(16, 32, 64), "vector accesses must not assume 16-byte addresses", "", "misaligned"),
        ("transposed", sizes(9, 33, 17, 2), "strides that are not row-major", "", "transposed"),
    ]


def _operand_lines(a_at: str, b_at: str, b_strides: str) -> list[str]:
    line = f"  const Elements<const T> left{{{a_at}, terms, 1}}, right{{{b_at}, {b_strides}}};"
    return (
        [line]
        if len(line) < 118
        else [line.split(", right")[0] + ";", f"  const Elements<const T> right{line[7:].split(', right')[1]}"]
    )


def matrix_places(layout: Layout, index: str, divided: str) -> tuple[bool, list[str], list[str]]:
    """Whether there are several matrices, the assignments of a matrix's places among them, and the sizes these need."""
    found = matrices(layout, index)
    lines = [f"{name} = {text}".replace("//", divided) for name, text in found]
    batch = range(layout.columns - 1)
    needed = " ".join([*lines, *(matrix_of(layout, name, index) for name in layout.tensors)])
    sizes = [extent(layout, group) for group in batch if extent(layout, group) in needed.replace("(", " ").split()]
    return bool(batch), lines, sizes


def matrix_start(layout: Layout, name: str, sizes: str) -> str:
    """What is added to a pointer so that it stands at the tensor's own matrix."""
    at = matrix_of(layout, name, "matrix") if layout.columns > 1 else ""
    return f" + {at} * {sizes}" if at else ""


def matrix_extents(program: Program, layout: Layout, wanted: list[str], shape: str) -> list[tuple[str, str]]:
    """(name, expression) of sizes along the axes of matrices, from the result's shape."""
    out = program.writes[0]
    return [
        (
            extent(layout, number),
            " * ".join(f"{out.name}." + shape.replace("AXIS", str(out.axes.index(axis))) for axis in group),
        )
        for number, group in enumerate(layout.groups[:-2])
        if extent(layout, number) in wanted
    ]


def where_it_meets(layout: Layout, name: str, row: str, col: str) -> str:
    """The offset of what meets a sum, in a tensor that has its rows, its columns, both or neither."""
    has = layout.tensors[name]
    text = matrix_of(layout, name, "matrix") if layout.columns > 1 else ""
    for group, size, at in ((layout.columns - 1, "rows", row), (layout.columns, "cols", col)):
        if group in has:
            outer = f"({text})" if " + " in text and not text.startswith("(") else text
            text = f"{outer} * {size} + {at}" if text else at
    return text[1:-1] if text.startswith("(") and text.endswith(")") and text.count("(") == 1 else text


def _mask(layout: Layout, name: str) -> str:
    rows, cols = (group in layout.tensors[name] for group in (layout.columns - 1, layout.columns))
    return "inside" if rows and cols else "row < rows" if rows else "col < cols" if cols else "True"


def sums_writer(
    program: Program, dialect: Dialect, names: dict[str, str], also: Collection[str] = frozenset()
) -> Writer:
    """A writer that knows the sums, and the inputs by `names`; it gives no name that is TAKEN or in `also`."""
    writer = Writer(program, dialect, {*TAKEN, *also})
    writer.known[operands_of(program).dot] = "sums"
    for number, value in enumerate(program.values):
        if value.operation == "read" and value.text in names:
            writer.known[number] = names[value.text]
    return writer


def _triton(definition: Definition, program: Program, layout: Layout) -> str:
    of, out = operands_of(program), program.writes[0]
    reads = [name for name, _ in program.reads]
    parameters = [name for name, _ in program.parameters]
    pointers = [f"{name}_ptr" for name in (*reads, out.name)]
    b_strides = "1, terms" if of.by_columns else "cols, 1"
    shape = ["BLOCK_M: tl.constexpr", "BLOCK_N: tl.constexpr", "BLOCK_K: tl.constexpr", "GROUP: tl.constexpr"]
    shape.append("PRECISION: tl.constexpr")
    sums = [
        "row",
        "col",
        "rows",
        "cols",
        "terms",
        "terms",
        "1",
        *b_strides.split(", "),
        "BLOCK_M",
        "BLOCK_N",
        "BLOCK_K",
        "PRECISION",
    ]
    body = [
        "block_m, block_n = place(tl.program_id(0), tl.cdiv(rows, BLOCK_M), tl.cdiv(cols, BLOCK_N), GROUP)",
        "# int64: row * terms leaves int32 beyond 2^31 elements",
        "row = (block_m * BLOCK_M + tl.arange(0, BLOCK_M)).to(tl.int64)[:, None]  # [BLOCK_M, 1]",
        "col = (block_n * BLOCK_N + tl.arange(0, BLOCK_N)).to(tl.int64)[None, :]  # [1, BLOCK_N]",
        "inside = (row < rows) & (col < cols)",
        *call("sums = masked_sums", [f"{of.a}_ptr", f"{of.b}_ptr", *sums], 4).removeprefix("    ").split("\n    "),
    ]
    several, at_matrix, batch = matrix_places(layout, "matrix", "//")
    a_at, b_at = (f"{name}_ptr" + matrix_start(layout, name, sizes) for name, sizes in (
        (of.a, "rows * terms"), (of.b, "terms * cols")))  # fmt: skip
    if several:
        body = [
            "tiles = tl.cdiv(rows, BLOCK_M) * tl.cdiv(cols, BLOCK_N)",
            "# int64: matrix * rows leaves int32 beyond 2^31 elements",
            "matrix, tile = (tl.program_id(0) // tiles).to(tl.int64), tl.program_id(0) % tiles",
            *at_matrix,
            body[0].replace("tl.program_id(0)", "tile"),
            *body[1:5],
            *call("sums = masked_sums", [a_at, b_at, *sums], 4).removeprefix("    ").split("\n    "),
        ]
    others = [name for name in reads if name not in (of.a, of.b)]
    if others:
        body.append("# what meets the sums is read once for a block, while they are in registers")
    for name in others:
        body.append(
            f"{name} = load_float({name}_ptr + {where_it_meets(layout, name, 'row', 'col')}, {_mask(layout, name)})"
        )
    writer = sums_writer(program, TRITON, {name: name for name in others})
    text = writer.write([out.value])[0]
    body += writer.lines
    if not text.isidentifier():
        local = out.name if out.name not in writer.known.values() else f"{out.name}_stored"
        body.append(f"{local} = {text}")
        text = local
    body.append(f"store_float({out.name}_ptr + {where_it_meets(layout, out.name, 'row', 'col')}, {text}, inside)")
    kernel = f"{definition.name}_block"
    given = [*reads, out.name, "rows", "cols", "terms", *batch, *parameters, "BLOCK_M=BLOCK_M", "BLOCK_N=BLOCK_N"]
    given += [f"BLOCK_K=BLOCK_K_BYTES // {of.a}.element_size()", "GROUP=GROUP", 'PRECISION="ieee"']
    given += ["num_warps=num_warps", "num_stages=num_stages"]
    tunables = ["BLOCK_M", "BLOCK_N", "BLOCK_K_BYTES", "GROUP", "num_warps", "num_stages"]
    return (
        '"""A block of the product per program; what is done to its sums is done in registers.\n\n'
        "moves     the left side cdiv(cols, BLOCK_N) times, the right side cdiv(rows, BLOCK_M) times, mostly from the\n"
        "          second-level cache\n"
        "limits    few blocks leave most of a GPU idle: few rows and columns with many terms want these split as well\n"
        'precision float32 operands are multiplied in float32 ("ieee"), 16-bit ones on tensor cores\n"""\n\n'
        "import triton\nimport triton.language as tl\n\n"
        "from opforge.device.triton.gemm import masked_sums, place\n"
        f"from opforge.device.triton.norms import {'load_float, ' * bool(others)}store_float\n\n"
        + _SPACE
        + "\n\n@triton.jit\n"
        + call(f"def {kernel}", [*pointers, "rows", "cols", "terms", *batch, *parameters, *shape], 0, ":")
        + "\n"
        + "".join(f"    {line}\n" for line in body)
        + "\n\n"
        + call("def launch", [*reads, out.name, "*", *parameters, *tunables], 0, ":")
        + f"\n    if {out.name}.numel() == 0:\n        return\n"
        f"    terms, cols = {of.a}.shape[-1], {out.name}.shape[-1]\n"
        + (
            f"    rows = {out.name}.shape[-2]\n    matrices = {out.name}.numel() // (rows * cols)\n"
            + "".join(f"    {name} = {size}\n" for name, size in matrix_extents(program, layout, batch, "shape[AXIS]"))
            + "    grid = (matrices * triton.cdiv(rows, BLOCK_M) * triton.cdiv(cols, BLOCK_N),)\n"
            if several
            else f"    rows = {out.name}.numel() // cols\n"
            "    grid = (triton.cdiv(rows, BLOCK_M) * triton.cdiv(cols, BLOCK_N),)\n"
        )
        + call(f"{kernel}[grid]", given, 4)
        + "\n"
    )


def _cpp(definition: Definition, program: Program, layout: Layout) -> str:
    of, out = operands_of(program), program.writes[0]
    others = [name for name, _ in program.reads if name not in (of.a, of.b)]
    writer = sums_writer(program, CPP, {name: f"{name}_here" for name in others})
    text = writer.write([out.value])[0]
    b_strides = "1, terms" if of.by_columns else "cols, 1"
    body = ["  using opforge::gemm::Elements;", "  if (rows == 0 || cols == 0) return;"]
    epilogue: list[str] = []
    if text != "sums":
        epilogue = ["      for (int64_t j = 0; j < n; ++j) {", "        const float sums = line[j];"]
        for name in others:
            at = where_it_meets(layout, name, "row", "col + j")
            epilogue.append(f"        const float {name}_here = opforge::load_as_float({name}[{at}]);")
        epilogue += [f"        {line}" for line in writer.lines]
        epilogue += [f"        line[j] = {text};", "      }"]
    several, at_matrix, batch = matrix_places(layout, "matrix", "/")
    names = "float* line, int64_t row, int64_t col, int64_t n" if epilogue else "float*, int64_t, int64_t, int64_t"
    a_at, b_at, out_at = (name + matrix_start(layout, name, sizes) for name, sizes in (
        (of.a, "rows * terms"), (of.b, "terms * cols"), (out.name, "rows * cols")))  # fmt: skip
    if several:
        body.append("  const auto one = [&](int64_t matrix) {")
        body += [f"    const int64_t {line};" for line in at_matrix]
    first = len(body)
    body += [
        *_operand_lines(a_at, b_at, b_strides),
        "  opforge::gemm::multiply_one<opforge::gemm::Tuned, T, T>(",
        f"      left, right, Elements<T>{{{out_at}, cols, 1}}, rows, cols, terms,",
        f"      [&]({names}) {{" + "}" * (not epilogue) + ");" * (not epilogue),
        *epilogue,
        *(["      });"] if epilogue else []),
    ]
    sizes = [
        ("terms", f"{of.a}.size(-1)"),
        ("cols", f"{out.name}.size(-1)"),
        ("rows", f"cols == 0 ? 0 : {out.name}.numel() / cols"),
    ]
    if several:
        body[first:] = [f"  {line}" for line in body[first:]]
        body += [
            "  };",
            "  // many matrices are shared out whole; a few are each shared out by themselves",
            "  if (matrices >= 16) {",
            "    opforge::parallel_for(0, matrices, 1, [&](int64_t first, int64_t last) {",
            "      for (int64_t matrix = first; matrix < last; ++matrix) one(matrix);",
            "    });",
            "  } else {",
            "    for (int64_t matrix = 0; matrix < matrices; ++matrix) one(matrix);",
            "  }",
        ]
        sizes[2:] = [
            ("rows", f"{out.name}.size(-2)"),
            ("matrices", f"rows * cols == 0 ? 0 : {out.name}.numel() / (rows * cols)"),
            *matrix_extents(program, layout, batch, "size(AXIS)"),
        ]
    return cpp_text(
        "Packed panels that stay in cache; what is done to the sums is done to a register tile before it is stored.",
        [
            "moves     both sides are packed, the result is written once where terms <= DEPTH",
            "limits    16-bit elements are widened to float32 while packing",
        ],
        '#include "opforge/gemm/host_tunables.h"\n',
        definition,
        program,
        body,
        sizes,
    )
