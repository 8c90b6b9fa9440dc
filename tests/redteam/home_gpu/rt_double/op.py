"""y = 2 x, for the red team on a GPU: every file beside this one is a planted cheat, or honest and so called."""

from pathlib import Path

from opforge.core.operator import Case, Operator, TensorSpec, Tolerance, Workload

operator = Operator(
    name="rt_double",
    about="2 x",
    inputs=(TensorSpec(name="x", shape="n"),),
    outputs=(TensorSpec(name="y", shape="n"),),
    reference=lambda x: 2 * x,
    flops="n",
    dtypes=("float32",),
    tolerance=Tolerance(factor=0.0, roundings=0.0, about="exact"),
    cases=(
        Case(name="normal", axes={"n": 1000}, why="plain"),
        Case(name="odd", axes={"n": 1003}, why="no whole number of vectors"),
        Case(name="special", axes={"n": 1000}, distribution="special", why="NaN and infinities"),
        Case(name="strided", axes={"n": 1000}, layout="strided", why="gaps between elements"),
        Case(name="long", axes={"n": 70001}, why="longer than what is usually looked at"),
        Case(name="twins", axes={"n": 1024}, distribution="twins", why="agree where a lazy cache looks"),
    ),
    workloads=(Workload(name="timed", axes={"n": 1 << 16}, source="the red team's stop-watch"),),
    implementations=tuple(
        sorted(path.stem for path in Path(__file__).parent.glob("*_*") if path.suffix in (".py", ".cu"))
    ),
)
