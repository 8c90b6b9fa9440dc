"""max(x, 0), for the red team: every file beside this one is a planted cheat."""

from pathlib import Path

from opforge.core.operator import Case, Operator, TensorSpec, Tolerance, Workload


def reference(x):
    return x.clamp(min=0)


operator = Operator(
    name="rt_relu",
    about="max(x, 0)",
    inputs=(TensorSpec(name="x", shape="*shape"),),
    outputs=(TensorSpec(name="y", shape="*shape"),),
    reference=reference,
    flops="prod(shape)",
    dtypes=("float32",),
    tolerance=Tolerance(),
    cases=(
        Case(
            name="normal",
            axes={
                "shape": (
                    16,
                    65,
                )
            },
            why="plain",
        ),
        Case(
            name="odd",
            axes={
                "shape": (
                    7,
                    129,
                )
            },
            why="one past a block",
        ),
        Case(
            name="large",
            axes={
                "shape": (
                    4,
                    257,
                )
            },
            distribution="large",
            why="large values",
        ),
        Case(
            name="skewed",
            axes={
                "shape": (
                    16,
                    33,
                )
            },
            distribution="skewed",
            why="no element is negative",
        ),
        Case(
            name="special",
            axes={
                "shape": (
                    9,
                    67,
                )
            },
            distribution="special",
            why="NaN and infinities",
        ),
        Case(
            name="twins",
            axes={
                "shape": (
                    8,
                    96,
                )
            },
            distribution="twins",
            why="agree where a lazy cache looks",
        ),
        Case(
            name="transposed",
            axes={
                "shape": (
                    33,
                    65,
                )
            },
            layout="transposed",
            why="strides",
        ),
        Case(
            name="sliced",
            axes={
                "shape": (
                    9,
                    128,
                )
            },
            layout="sliced",
            why="rows in a wider matrix",
        ),
        Case(
            name="empty",
            axes={
                "shape": (
                    0,
                    16,
                )
            },
            why="no elements",
        ),
    ),
    workloads=(
        Workload(
            name="timed",
            axes={
                "shape": (
                    1024,
                    1024,
                )
            },
            source="the red team's stop-watch",
            scale="laptop",
        ),
    ),
    implementations=tuple(
        sorted(path.stem for path in Path(__file__).parent.glob("*_*") if path.suffix in (".py", ".cpp"))
    ),
)
