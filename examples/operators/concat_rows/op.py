"""Matrices of the same rows and of any widths, side by side in one: an input that is a list of tensors."""

import torch

from opforge.core.operator import Case, Operator, TensorSpec, Tolerance, Workload


def reference(xs):
    return torch.cat(xs, dim=1)


operator = Operator(
    name="concat_rows",
    about="any number of matrices side by side",
    source="torch.cat along the last axis; an example of lists: docs/kernels.md",
    inputs=(TensorSpec(name="xs", shape="rows widths", many="widths", about="any number, each of its own width"),),
    outputs=(TensorSpec(name="y", shape="rows total"),),
    derived={"total": "sum(widths)"},
    reference=reference,
    flops="0",
    tolerance=Tolerance(factor=0.0, roundings=0.0, about="a copy"),
    cases=(
        Case(name="two", axes={"rows": 7, "widths": (3, 5)}, why="the usual number"),
        Case(name="one", axes={"rows": 4, "widths": (129,)}, why="a list of one"),
        Case(name="many", axes={"rows": 3, "widths": (1, 64, 2, 31, 7, 1, 9)}, why="more than any unrolled loop"),
        Case(name="hole", axes={"rows": 5, "widths": (4, 0, 6)}, why="one of them has no columns"),
        Case(name="no_rows", axes={"rows": 0, "widths": (4, 2)}, why="nothing to do"),
        Case(name="rows", axes={"rows": 9, "widths": (8, 17)}, layout="sliced", why="parts of wider matrices"),
        Case(name="special", axes={"rows": 9, "widths": (8, 17)}, distribution="special", why="NaN goes through"),
    ),
    workloads=(
        Workload(name="qkv", axes={"rows": 4096, "widths": (768, 768, 768)}, source="GPT-2 small", scale="laptop"),
        Workload(name="gqa", axes={"rows": 8192, "widths": (4096, 1024, 1024)}, source="Llama 3 8B, q, k and v"),
    ),
    implementations=("triton_blocks", "cpp_rows", "torch_eager"),
)
