"""The CUDA kernel of a product with its epilogue, on request: opforge/gemm/formula_product.h with the formula in it."""

from __future__ import annotations

from opforge.forge.program.definition import Definition
from opforge.forge.program.families import Layout, operands_of
from opforge.forge.program.ir import Program
from opforge.forge.program.walks import matrix_of
from opforge.forge.write.cuda_file import whole_file
from opforge.forge.write.emit import CUDA
from opforge.forge.write.product_files import matrix_extents, matrix_places, sums_writer, where_it_meets

NAMES = frozenset(("matrix", "matrices", "stream", "left", "right", "result", "Formula", "Places", "places", "shared"))
"""What else the kernel names, beside TAKEN."""
_SPACE = """#include "opforge/elementwise/formula_device.h"
#include "opforge/gemm/formula_product.h"
#include "opforge/gemm/mma_tunables.h"

/* opforge
[space]
BLOCK_M = [32, 64, 128]
BLOCK_N = [64, 128, 256]
BLOCK_K = [32, 64]
STAGES = [2, 3, 4]
GROUP = [1, 4, 8, 16]

[default]
BLOCK_M = 128
BLOCK_N = 128
BLOCK_K = 32
STAGES = 4
GROUP = 8

[limits]
stages_fit_shared_memory = "2 * STAGES * (BLOCK_M + BLOCK_N) * (BLOCK_K + 8) <= 232448"
sums_fit_registers = "BLOCK_M * BLOCK_N <= 32768"
every_thread_copies_a_chunk = "min(BLOCK_M, BLOCK_N) * BLOCK_K >= 2048"
*/
"""


def cuda_product(definition: Definition, program: Program, layout: Layout) -> tuple[str, str]:
    """The file's name and text."""
    of, out = operands_of(program), program.writes[0]
    others = [name for name, _ in program.reads if name not in (of.a, of.b)]
    parameters = [name for name, _ in program.parameters]
    several, at_matrix, sizes = matrix_places(layout, "matrix", "/")
    uniform = all(matrix_of(layout, name, "matrix") in ("", "matrix") for name in (of.a, of.b)) or not several
    meets = [where_it_meets(layout, name, "row", "col") for name in others]
    writer = sums_writer(program, CUDA, {name: f"{name}_here" for name in others}, NAMES)
    text = writer.write([out.value])[0]
    body = [line for line in at_matrix if line.split(" = ")[0] in " ".join(meets).replace("(", " ").split()]
    body = [f"const int64_t {line};" for line in body]
    body += [
        f"const float {name}_here = opforge::load_as_float({name}[{at}]);"
        for name, at in zip(others, meets, strict=True)
    ]
    body += [*writer.lines, f"return {text};"]
    counted = [name for name in ("rows", "cols", *sizes) if any(name in line for line in body)]
    members = [f"const T* {name}" for name in others] + [f"int64_t {name}" for name in counted]
    members += [f"float {name}" for name in parameters]
    given = ["matrix", "row", "col"]
    arguments = [f"int64_t {name if any(name in line for line in body) else ''}".rstrip() for name in given]
    before = (
        "template <typename T>\nstruct Formula {\n"
        + "".join(f"  {one};\n" for one in members)
        + "\n" * bool(members)
        + f"  __device__ __forceinline__ float operator()(float sums, {', '.join(arguments)}) const {{\n"
        + "".join(f"    {line}\n" for line in body)
        + "  }\n};\n\n"
        + (_places(layout, of.a, of.b, at_matrix, sizes, uniform) if several else "")
    )
    held = [f"opforge::data<const T>({name})" for name in others]
    held += [*counted, *(f"static_cast<float>({name})" for name in parameters)]
    b_shape = ["cols", "terms"] if of.by_columns else ["terms", "cols"]
    shared = {name: ", true" * (several and not matrix_of(layout, name, "matrix")) for name in (of.a, of.b)}
    inside = [f"  const int64_t terms = {of.a}.size(-1), cols = {out.name}.size(-1);"]
    if several:
        inside += [
            f"  const int64_t rows = {out.name}.size(-2);",
            f"  const int64_t matrices = rows * cols == 0 ? 0 : {out.name}.numel() / (rows * cols);",
        ]
        inside += [f"  const int64_t {n} = {size};" for n, size in matrix_extents(program, layout, sizes, "size(AXIS)")]
    else:
        inside += [f"  const int64_t rows = cols == 0 ? 0 : {out.name}.numel() / cols;"]
    count = "matrices" if several else "1"
    turned = ".transposed()" * of.by_columns
    places = f"Places{{{', '.join(sizes)}}}" if several else "opforge::formula::OneMatrix()"
    inside += [
        "  using opforge::formula::matrices_of;",
        f'  const opforge::Matrix left = matrices_of({of.a}, "{of.a}", {count}, rows, terms{shared[of.a]});',
        f'  const opforge::Matrix right = matrices_of({of.b}, "{of.b}", {count}, {", ".join(b_shape)}{shared[of.b]})'
        f"{turned};",
        f'  const opforge::Matrix result = matrices_of({out.name}, "{out.name}", {count}, rows, cols);',
        f"  const auto stream = opforge::current_stream({of.a});",
        f"  OPFORGE_DISPATCH_DTYPE({of.a}, T, {{",
        "    const Formula<T> formula{" + ", ".join(held) + "};",
        f"    opforge::formula::launch<BLOCK_M, BLOCK_N, BLOCK_K, STAGES, GROUP, T, {'true' if several else 'false'}>(",
        f"        left, right, result, stream, {places}, formula);",
        "  });",
    ]
    limits = [
        "moves     tiles of both sides through shared memory; the sums meet the formula in registers",
        "precision float32 sums; float32 operands in multiply-adds with all their digits, 16-bit ones on tensor cores",
        "limits    mma.sync reaches about two thirds of what Hopper's wgmma can; float32 runs at FFMA speed",
    ]
    if not uniform:
        limits[-1] = (
            "limits    a side that lacks some of the matrices' axes keeps every dtype off the tensor cores: FFMA speed"
        )
    return "cuda_product.cu", whole_file(
        definition, program, inside, before,
        "A tile of the product per block; what is done to its sums is done before they are stored.",
        limits, _SPACE,
    )  # fmt: skip


def _places(layout: Layout, a: str, b: str, at_matrix: list[str], sizes: list[str], uniform: bool) -> str:
    """Which matrix of each side the product's matrix takes."""
    lines = ["struct Places {", f"  static constexpr bool kUniform = {'true' if uniform else 'false'};"]
    lines += [f"  int64_t {name};" for name in sizes]
    for side, name in (("a", a), ("b", b)):
        at = matrix_of(layout, name, "matrix")
        needed = [line for line in at_matrix if line.split(" = ")[0] in at.replace("(", " ").replace(")", " ").split()]
        argument = "int64_t matrix" if at else "int64_t"
        lines.append(f"  __device__ __forceinline__ int64_t {side}({argument}) const {{")
        lines += [f"    const int64_t {line};" for line in needed]
        lines += [f"    return {at.strip('()') or 0};", "  }"]
    return "\n".join([*lines, "};", "", ""])
