"""mean over the last axis, for the red team: every file beside this one is a planted cheat."""

from pathlib import Path

from opforge.core.operator import Case, Operator, TensorSpec, Tolerance, Workload


def reference(x):
    return x.mean(dim=-1)


def magnitude(inputs, outputs, scalars):
    return {"y": inputs["x"].abs().mean(dim=-1)}


operator = Operator(
    name="rt_mean",
    about="mean over the last axis",
    inputs=(TensorSpec(name="x", shape="*lead cols"),),
    outputs=(TensorSpec(name="y", shape="*lead"),),
    reference=reference,
    flops="prod(lead) * cols",
    dtypes=("float32",),
    tolerance=Tolerance(length="cols", magnitude=magnitude),
    cases=(
        Case(name="normal", axes={"lead": (16,), "cols": 64}, why="plain"),
        Case(name="odd", axes={"lead": (7,), "cols": 129}, why="one past a block"),
        Case(name="large", axes={"lead": (4,), "cols": 257}, distribution="large", why="exp overflows"),
        Case(name="offset", axes={"lead": (4,), "cols": 333}, distribution="offset", why="a common offset"),
        Case(name="constant", axes={"lead": (8,), "cols": 96}, distribution="constant_rows", why="equal values"),
        Case(
            name="special",
            axes={"lead": (9,), "cols": 67},
            distribution="special",
            dtype="float32",
            why="NaN and infinities",
        ),
        Case(name="twins", axes={"lead": (8,), "cols": 96}, distribution="twins", why="agree where a lazy cache looks"),
        Case(
            name="transposed",
            axes={"lead": (33,), "cols": 65},
            layout="transposed",
            why="strides that are not row-major",
        ),
        Case(name="sliced", axes={"lead": (9,), "cols": 128}, layout="sliced", why="rows in a wider matrix"),
        Case(name="empty", axes={"lead": (0,), "cols": 16}, why="no rows"),
        Case(name="wide", axes={"lead": (2,), "cols": 65536}, why="the mean of so many is nearly 0"),
    ),
    workloads=(
        Workload(name="timed", axes={"lead": (64,), "cols": 4096}, source="the red team's stop-watch", scale="laptop"),
    ),
    implementations=tuple(
        sorted(path.stem for path in Path(__file__).parent.glob("*_*") if path.suffix in (".py", ".cpp"))
    ),
)
