"""population variance over the last axis, for the red team: every file beside this one is a planted cheat."""

from pathlib import Path

from opforge.core.operator import Case, Operator, TensorSpec, Tolerance, Workload


def reference(x):
    return x.var(dim=-1, correction=0)


def magnitude(inputs, outputs, scalars):
    x = inputs["x"]
    # the mean is off by eps * mean|x|, and twice the deviation times that enters the square
    deviation = (x - x.mean(dim=-1, keepdim=True)).abs().mean(dim=-1)
    return {"y": outputs["y"] + 0.01 * deviation * x.abs().mean(dim=-1)}


operator = Operator(
    name="rt_var",
    about="population variance over the last axis",
    inputs=(TensorSpec(name="x", shape="*lead cols"),),
    outputs=(TensorSpec(name="y", shape="*lead"),),
    reference=reference,
    flops="3 * prod(lead) * cols",
    dtypes=("float32",),
    tolerance=Tolerance(length="cols", magnitude=magnitude),
    cases=(
        Case(name="normal", axes={"lead": (16,), "cols": 64}, why="plain"),
        Case(name="offset", axes={"lead": (4,), "cols": 333}, distribution="offset", why="a mean far from 0"),
        Case(name="constant", axes={"lead": (8,), "cols": 96}, distribution="constant_rows", why="no variance"),
    ),
    workloads=(
        Workload(name="timed", axes={"lead": (64,), "cols": 4096}, source="the red team's stop-watch", scale="laptop"),
    ),
    implementations=tuple(
        sorted(path.stem for path in Path(__file__).parent.glob("*_*") if path.suffix in (".py", ".cpp"))
    ),
)
