"""matrix product, for the red team: every file beside this one is a planted cheat."""

from pathlib import Path

from opforge.core.operator import Case, Operator, TensorSpec, Tolerance, Workload


def reference(a, b):
    return a @ b


def magnitude(inputs, outputs, scalars):
    return {"y": inputs["a"].abs() @ inputs["b"].abs()}


operator = Operator(
    name="rt_matmul",
    about="matrix product",
    inputs=(
        TensorSpec(name="a", shape="m k"),
        TensorSpec(name="b", shape="k n"),
    ),
    outputs=(TensorSpec(name="y", shape="m n"),),
    reference=reference,
    flops="2 * m * k * n",
    dtypes=("float32",),
    tolerance=Tolerance(length="k", magnitude=magnitude),
    unit="matrix",
    cases=(
        Case(name="normal", axes={"m": 16, "k": 64, "n": 24}, why="plain"),
        Case(name="odd", axes={"m": 7, "k": 129, "n": 33}, why="odd sizes"),
        Case(name="constant", axes={"m": 8, "k": 32, "n": 16}, distribution="constant_rows", why="rank one"),
        Case(
            name="twins", axes={"m": 16, "k": 16, "n": 16}, distribution="twins", why="agree where a lazy cache looks"
        ),
        Case(name="transposed", axes={"m": 17, "k": 33, "n": 9}, layout="transposed", why="strides"),
        Case(name="integers", axes={"m": 16, "k": 64, "n": 24}, distribution="integers", why="exact"),
    ),
    workloads=(
        Workload(name="timed", axes={"m": 256, "k": 256, "n": 256}, source="the red team's stop-watch", scale="laptop"),
    ),
    implementations=tuple(
        sorted(path.stem for path in Path(__file__).parent.glob("*_*") if path.suffix in (".py", ".cpp"))
    ),
)
