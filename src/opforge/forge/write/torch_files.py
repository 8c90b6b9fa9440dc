"""The reference and PyTorch's baselines: the same expressions, on what is given or in float32."""

from __future__ import annotations

from opforge.core.language.errors import UsageError
from opforge.forge.program.definition import TAKEN, Definition
from opforge.forge.program.families import WAY_OUT, Layout, Operands, operands_of
from opforge.forge.program.ir import Program
from opforge.forge.write.emit import TORCH, Writer, call


def reference_text(program: Program, layout: Layout) -> str:
    """`def reference(inputs, parameters)`, in methods of tensors alone."""
    arguments = [*(name for name, _ in program.reads), *(name for name, _ in program.parameters)]
    return call("def reference", arguments, tail=":") + "\n" + _body(program, layout, narrow="")


def torch_files(definition: Definition, program: Program, layout: Layout) -> dict[str, str]:
    """`torch_eager.py`, the formula as a user of PyTorch writes it; where that rounds in between, beside it
    `torch_definition.py`, which computes in float32 as the kernels do.
    """
    steps = sum(value.operation not in FREE and not value.truth for value in program.values)
    if steps <= 1 or set(definition.dtypes) <= {"float32", "float64"}:
        return {"torch_eager.py": _text(program, layout, EAGER, wide=False)}
    return {
        "torch_definition.py": _text(program, layout, IN_FLOAT32, wide=True),
        "torch_eager.py": _text(program, layout, EAGER, wide=False, stated=ROUNDS),
    }


FREE = ("const", "parameter", "read")
"""What rounds nothing."""
EAGER = "What a user of PyTorch writes: the baseline. torch.compile makes one kernel of it."
IN_FLOAT32 = "The formula in PyTorch, float32 between its inputs and its outputs, as the kernels have it."
ROUNDS = """INACCURATE = "in 16 bits the result of every step is rounded, and may leave the dtype's range on the way"

"""


def _text(program: Program, layout: Layout, about: str, *, wide: bool, stated: str = "") -> str:
    names = [name for name, _ in program.reads]
    arguments = [f"{name}: Tensor" for name in names] + [f"{name}: float" for name, _ in program.parameters]
    count = len(program.writes)
    returned = "Tensor" if count == 1 else f"tuple[{', '.join(['Tensor'] * count)}]"
    truths = any(program.values[write.value].truth for write in program.writes)
    kept = f"    dtype = {names[0]}.dtype\n" if wide or truths else ""
    widened = "".join(f"    {name} = {name}.float()\n" for name in names) if wide else ""
    stated = stated and f"{stated}\n"
    return (
        f'"""{about}"""\n\nfrom torch import Tensor\n\n'
        + (stated or "\n")
        + call("def run", arguments, tail=f" -> {returned}:")
        + "\n"
        + kept
        + widened
        + _body(program, layout, narrow=".to(dtype)" if kept else "")
    )


def _body(program: Program, layout: Layout, narrow: str) -> str:
    writer = Writer(program, TORCH, TAKEN)
    lines: list[str] = []
    product = operands_of(program) if layout.family == "product" else None
    if product is not None:
        turned = f"{product.b}.transpose(-1, -2)" if product.by_columns else product.b
        writer.reduce = lambda number, value: f"{product.a} @ {turned}"
    for name, axes in program.reads:
        if product is not None:
            index = _index_in(program, axes, _order_in_product(program, layout, product, name))
        else:
            index = _index_in(program, axes, program.axes)
        if index:
            lines.append(f"{name} = {name}[{index}]")
    texts = writer.write([write.value for write in program.writes])
    results: list[str] = []
    for write, text in zip(program.writes, texts, strict=True):
        ending = ".squeeze(-1)" if layout.family == "rows" and layout.tensors[write.name] == (0,) else ""
        ending += narrow
        if (ending and not text.isidentifier()) or len(text) > 88:
            writer.lines.append(f"{_unused(writer, write.name)} = {text}")
            text = writer.lines[-1].split(" = ")[0]
        results.append(text + ending)
    return "".join(f"    {line}\n" for line in (*lines, *writer.lines)) + f"    return {', '.join(results)}\n"


def _unused(writer: Writer, name: str) -> str:
    return name if name not in writer.known.values() else f"{name}_stored"


def _order_in_product(program: Program, layout: Layout, product: Operands, name: str) -> tuple[str, ...]:
    """The axes that an operand of a product, or what meets its result, is given."""
    matrices = tuple(axis for group in layout.groups[:-2] for axis in group)
    shape = dict(program.reads)[name]
    if name == product.a:
        return (*matrices, *layout.groups[-2], product.terms)
    return (*matrices, *shape[-2:]) if name == product.b else program.writes[0].axes


def _index_in(program: Program, axes: tuple[str, ...], order: tuple[str, ...]) -> str:
    """What to put in brackets after an input, so that its axes meet those of `order` by position; "" for nothing.

    Raises UsageError where an input lacks the axes of any rank and has axes on both sides of them.
    """
    first = order.index(axes[0])
    behind = order[first:]
    if all(axis in axes for axis in behind):
        return ""
    missing_star = next((axis for axis in behind if axis.startswith("*") and axis not in axes), None)
    items = ["..." if axis.startswith("*") else ":" if axis in axes else "None" for axis in behind]
    if missing_star is None:
        # what a leading ... stands for is said by it alone
        return ", ".join(items)
    full = next((name for name, has in program.reads if has == order), None)
    if full is None:
        raise UsageError(
            f"An input without {missing_star} needs another one with all axes ({', '.join(order)}) beside it. {WAY_OUT}"
        )
    ones = f"*(None,) * ({full}.ndim - {len(order) - 1})"
    words = [ones if axis == missing_star else "slice(None)" if axis in axes else "None" for axis in behind]
    return f"({', '.join(words)})"
