"""The sum of a vector in parts, for the red team on a GPU: it reads much, writes little, and fits the cache."""

from opforge.core.operator import Case, Constraint, Operator, TensorSpec, Tolerance, Workload


def magnitude(inputs, outputs, scalars):
    return {"y": inputs["x"].abs().sum(dim=-1)}


operator = Operator(
    name="rt_total",
    about="sums of rows",
    inputs=(TensorSpec(name="x", shape="rows cols"),),
    outputs=(TensorSpec(name="y", shape="rows"),),
    reference=lambda x: x.sum(dim=-1),
    flops="rows * cols",
    dtypes=("float32",),
    tolerance=Tolerance(length="cols", magnitude=magnitude),
    constraints=(
        Constraint(name="whole_vectors", expression="cols % 4 == 0", about="rows are read four elements at a time"),
    ),
    cases=(Case(name="normal", axes={"rows": 33, "cols": 4096}, why="plain"),),
    workloads=(
        Workload(
            name="timed",
            axes={"rows": 1536, "cols": 4096},
            source="24 MiB: half of the cache, so that all of it can be pinned there",
        ),
    ),
    implementations=("cuda_honest", "cuda_pinned"),
)
