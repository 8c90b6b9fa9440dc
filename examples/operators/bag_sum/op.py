"""Rows of a table, picked by indices and summed over segments of any length: an embedding bag, with ragged inputs."""

import torch

from opforge.core.operator import Case, Operator, TensorSpec, Tolerance, Workload


def reference(table, indices, offsets):
    bags = torch.arange(len(offsets) - 1, device=offsets.device)
    bag = torch.repeat_interleave(bags, offsets.diff())
    return table.new_zeros(len(bags), table.shape[1]).index_add(0, bag, table[indices])


operator = Operator(
    name="bag_sum",
    about="rows of a table, picked by indices and summed over segments of any length",
    source="torch.nn.functional.embedding_bag, mode sum; an example of ragged inputs: docs/kernels.md",
    inputs=(
        TensorSpec(name="table", shape="vocab d"),
        TensorSpec(name="indices", shape="n", dtype="int64", below="vocab"),
        TensorSpec(name="offsets", shape="bounds", dtype="int64", offsets="n", about="bag i is offsets[i] up to i + 1"),
    ),
    outputs=(TensorSpec(name="y", shape="bags d"),),
    derived={"bags": "bounds - 1"},
    reference=reference,
    flops="n * d",
    bytes_read="n * (d * itemsize + 8) + bounds * 8",
    tolerance=Tolerance(
        magnitude=lambda inputs, outputs, scalars: {
            "y": reference(inputs["table"].abs(), inputs["indices"], inputs["offsets"])
        },
        length="n",
        about="a sum over each bag",
    ),
    cases=(
        Case(name="few", axes={"vocab": 50, "d": 32, "n": 40, "bounds": 9}, why="eight bags, some of them empty"),
        Case(name="odd_tail", axes={"vocab": 31, "d": 129, "n": 77, "bounds": 12}, why="one past a block of 128"),
        Case(name="one_bag", axes={"vocab": 9, "d": 5, "n": 300, "bounds": 2}, why="everything in one bag"),
        Case(name="more_bags", axes={"vocab": 9, "d": 8, "n": 10, "bounds": 65}, why="most bags are empty"),
        Case(name="no_bag", axes={"vocab": 9, "d": 8, "n": 0, "bounds": 1}, why="nothing to write"),
        Case(name="no_index", axes={"vocab": 9, "d": 8, "n": 0, "bounds": 4}, why="zeros must be written"),
        Case(name="one", axes={"vocab": 1, "d": 1, "n": 1, "bounds": 2}, why="a scale"),
        Case(
            name="exact",
            axes={"vocab": 64, "d": 64, "n": 512, "bounds": 17},
            distribution="integers",
            why="sums of whole numbers leave no room",
        ),
        Case(
            name="rows",
            axes={"vocab": 40, "d": 24, "n": 60, "bounds": 8},
            layout="sliced",
            why="a part of a wider table",
        ),
        Case(
            name="special",
            axes={"vocab": 40, "d": 24, "n": 60, "bounds": 8},
            distribution="special",
            why="NaN and infinities reach their bags alone",
        ),
    ),
    workloads=(
        Workload(
            name="small",
            axes={"vocab": 10_000, "d": 64, "n": 65_536, "bounds": 2049},
            source="DLRM-sized: 2048 samples, 32 indices each on average",
            scale="laptop",
        ),
        Workload(
            name="dlrm",
            axes={"vocab": 1_000_000, "d": 128, "n": 2_097_152, "bounds": 65_537},
            source="DLRM, MLPerf training: one table, batch of 65536",
        ),
    ),
    implementations=("triton_bags", "cpp_bags", "torch_eager"),
)
