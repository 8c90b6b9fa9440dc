"""a @ b, for the red team on a GPU."""

from pathlib import Path

from opforge.core.operator import Case, Operator, TensorSpec, Tolerance


def magnitude(inputs, outputs, scalars):
    return {"c": inputs["a"].abs() @ inputs["b"].abs()}


operator = Operator(
    name="rt_product",
    about="a @ b",
    inputs=(TensorSpec(name="a", shape="m k"), TensorSpec(name="b", shape="k n")),
    outputs=(TensorSpec(name="c", shape="m n"),),
    reference=lambda a, b: a @ b,
    flops="2 * m * n * k",
    dtypes=("float32",),
    tolerance=Tolerance(length="k", magnitude=magnitude),
    cases=(
        Case(
            name="normal",
            axes={"m": 128, "n": 128, "k": 32},
            why="plain, and short enough for a loose bound to accept ten bits",
        ),
        Case(
            name="positive",
            axes={"m": 128, "n": 128, "k": 32},
            distribution="skewed",
            why="nothing cancels, so that a loose bound accepts seven bits",
        ),
    ),
    implementations=tuple(
        sorted(path.stem for path in Path(__file__).parent.glob("*_*") if path.suffix in (".py", ".cu"))
    ),
    unit="matrix",
)
