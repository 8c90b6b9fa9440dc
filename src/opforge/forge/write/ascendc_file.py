"""`NAME_ascendc.py`, on request: AscendC of a program by TileLang's target for Ascend, one SIMT thread for each element
of the result, or for each row.
"""

from __future__ import annotations

from opforge.core.language.errors import UsageError
from opforge.forge.program.definition import Definition
from opforge.forge.program.families import Layout, operands_of
from opforge.forge.program.ir import Program
from opforge.forge.program.walks import sources
from opforge.forge.write.emit import TILELANG, call
from opforge.forge.write.product_files import sums_writer
from opforge.forge.write.tilelang_file import (
    NAMES as ROW_NAMES,
    STORED,
    formula_function,
    outer_places,
    parameters_of,
    place_of,
    reader_of,
    signature,
    size_of,
    tools_imported,
)
from opforge.forge.write.tilelang_scans import Scanned

NAMES = frozenset({*ROW_NAMES, "core", "cores", "step", "lowered", "source", "argparse", "sums"})
"""What else the kernels name."""
_ABOUT = '''"""{name} as AscendC for an Ascend 950, by TileLang: {idea}.

    python {name}_ascendc.py --dtype float16 > {name}.asc

prints it, on a machine without an NPU too. bisheng of CANN compiles it; that was not done here, and it has not run on
an NPU. Its arithmetic was run on a CPU, thread after thread, by opforge's tests.

moves     {moves}
limits    {limits}
"""

'''
_MAIN = '''

def source(dtype="float16"{given}):
    """The AscendC text."""
    return lowered(program(dtype=dtype{passed}))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dtype", choices=({kinds}), default="{first}")
    print(source(parser.parse_args().dtype))
'''


def ascendc_file(definition: Definition, program: Program, layout: Layout) -> tuple[str, str]:
    """The file's name and text. Raises UsageError where a name of the definition means something in it."""
    named = [name for name, _ in (*program.reads, *program.parameters)] + [write.name for write in program.writes]
    if taken := next((name for name in named if name in NAMES), None):
        raise UsageError(f"{taken!r} means something in AscendC files. Rename it, or leave out --backend ascendc.")
    if layout.family == "product":
        idea, moves, limits = (
            "a thread for each element of the result",
            "a row and a column for each element, from the caches",
            "the Cube's matrix unit is not used: every product is a multiply-add of a vector core",
        )
        head, body, count = _product(program)
    elif layout.family == "rows":
        idea, moves, limits = (
            "a thread for each row, which walks along its columns",
            "the inputs once for each reduction and each result",
            "neighbouring threads read different rows; few rows leave most cores idle",
        )
        walked = _Walked(definition, program, layout)
        head, body = walked.head_and_body()
        count = " * ".join(map(size_of, program.axes[:-1]))
    else:
        idea, moves, limits = (
            "a thread for each element",
            "each tensor once; what is broadcast comes from the caches",
            "elements are read from global memory one by one: no copies through the unified buffer",
        )
        head, body, count = _elements(program)
    about = _ABOUT.format(name=definition.name, idea=idea, moves=moves, limits=limits)
    return f"{definition.name}_ascendc.py", about + _file(definition, program, head, body, count)


def _file(definition: Definition, program: Program, head: list[str], body: list[str], count: str) -> str:
    axes = list(dict.fromkeys(axis for _, has in program.reads for axis in has))
    sizes = [f'{size_of(axis)} = T.dynamic("{size_of(axis)}", "int64")' for axis in axes]
    text = "\n".join([*head, *body])
    sizes += [f"rows = {count}"]
    sizes += [f"cols = {size_of(program.axes[-1])}"] * ("(cols)" in text or ", cols)" in text)
    sizes += ['kept, target = storage(dtype, "ascend"), "ascend"', "each = loop(target)"]
    sizes += ["alloc = tile(target)"] * ("alloc(" in text)
    sizes += [*parameters_of(program), ""]
    sizes += ["def row_at(block, i):", "    return block * height + i", ""]
    function = [
        "    @T.prim_func",
        signature(definition, program),
        "        with T.Kernel(cores) as core:",
        "            for step in T.serial(T.ceildiv(rows, height * cores)):",
        "                block = step * cores + core",
        "                with T.SimtVF(threads=height):",
        *(f"                    {line}" for line in body),
    ]
    parameters = [f"{name}={value!r}" for name, value in program.parameters]
    lines = [*sizes, *head]
    return (
        "import argparse\n\nimport tilelang.ascend.language as T\n\n"
        + "from opforge.device.tilelang.ascend import lowered\n"
        + tools_imported(lines, body)
        + "\n\n"
        + call("def program", ["*", "dtype", *parameters, "height=256", "cores=64"], 0, ":")
        + "\n"
        + "".join(f"    {line}".rstrip() + "\n" for line in lines)
        + "\n".join(function)
        + f"\n\n    return {definition.name}\n"
        + _MAIN.format(
            given="".join(f", {one}" for one in parameters),
            passed="".join(f", {name}={name}" for name, _ in program.parameters),
            kinds=", ".join(f'"{one}"' for one in definition.dtypes),
            first=definition.dtypes[0],
        )
    )


def _elements(program: Program) -> tuple[list[str], list[str], str]:
    """Functions before the kernel, its body, and how many threads it needs."""
    reads = [name for name, _ in program.reads]
    head = outer_places([*program.axes])
    for name, axes in program.reads:
        head += reader_of(name, axes, "")
    known = sources(program, {one: one for one in reads})
    body = ["for i in each(height):", "    if row_at(block, i) < rows:"]
    for write in program.writes:
        head += formula_function(program, f"{write.name}_of", write.value, known, reads, STORED)
        body += _stored(write.name, write.axes, [f"{name}_at({name}, block, i, 0)" for name in reads])
    return head, body, " * ".join(map(size_of, program.axes))


def _product(program: Program) -> tuple[list[str], list[str], str]:
    of, out = operands_of(program), program.writes[0]
    others = [name for name, _ in program.reads if name not in (of.a, of.b)]
    head = outer_places([*out.axes])
    for name, axes in program.reads:
        head += reader_of(name, axes, of.terms if name in (of.a, of.b) else "")
    writer = sums_writer(program, TILELANG, {name: name for name in others}, {*NAMES, *others})
    text = writer.write([out.value])[0]
    head += [f"def {out.name}_of({', '.join(['sums', *others])}):", *(f"    {line}" for line in writer.lines)]
    head += [f"    return {STORED.replace('TEXT', text)}", ""]
    given = ["sums[i]", *(f"{name}_at({name}, block, i, 0)" for name in others)]
    body = [
        'sums = alloc((height,), "float32")',
        "for i in each(height):",
        "    sums[i] = T.float32(0)",
        f"for at in T.serial({size_of(of.terms)}):",
        "    for i in each(height):",
        "        if row_at(block, i) < rows:",
        f"            sums[i] = sums[i] + {of.a}_at({of.a}, block, i, at) * {of.b}_at({of.b}, block, i, at)",
        "for i in each(height):",
        "    if row_at(block, i) < rows:",
        *_stored(out.name, out.axes, given),
    ]
    return head, body, " * ".join(map(size_of, out.axes))


def _stored(name: str, axes: tuple[str, ...], given: list[str]) -> list[str]:
    """The statement that stores an element of a result, as it stands in a kernel's condition."""
    places = [f"{place_of(axis)}(block, i)" for axis in axes]
    head = f"{name}[{', '.join(places)}] = {name}_of"
    if len(head) + 29 <= 120:
        return [line[20:] for line in call(head, given, 28).split("\n")]
    lines = [f"{name}[", *(f"    {place}," for place in places), f"] = {name}_of({', '.join(given)})"]
    return [f"        {line}" for line in lines]


class _Walked(Scanned):
    """Rows of which everything walks along the columns, in float32: each thread has its row for itself."""

    tiled, double, deeper = False, False, 8

    def head_and_body(self) -> tuple[list[str], list[str]]:
        """Functions before the kernel, and its body."""
        for number, value in enumerate(self.program.values):
            if value.reduces:
                self.reduced(number, value)
            elif value.scans:
                self.scanned(number, value)
        for write in self.program.writes:
            self.written(write.name, write.axes, write.value)
        head = outer_places([*self.program.axes[:-1]])
        for name, axes in self.program.reads:
            head += reader_of(name, axes, self.last)
        kept = [f'{name} = alloc((height,), "float32")' for name in dict.fromkeys(self.fragments.values())]
        return [*head, *self.functions], [*kept, *self.more_kept(), *self.body]
