"""Which candidates scripts/degraded.py chooses from, and what of a multiprocessor the kernels of one take."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from space_definitions import SPACES, Point, Variant, Wanted, points_of

from opforge.core.definition.implementation import Config
from opforge.registry import load

BESIDE = ("softmax",)
"""Operators of which every implementation that the registry has is a candidate. A cap on registers is told to Triton's
compiler alone, so what other kernels of the product would recover under it could not be seen.
"""
NEAR = 3
"""Parameters. All points of those kernels would be some hundred libraries for nvcc."""


def tasks() -> list[Wanted]:
    """Two kernels that memory bounds and one that arithmetic does."""
    softmax = [dataclasses.replace(item, kernel="softmax") for item in SPACES if item.kernel == "softmax_triton"]
    product = Wanted(
        kernel="matmul_triton",
        shape="4096x4096x4096",
        operator="matmul",
        axes={"m": 4096, "n": 4096, "k": 4096},
        variants=(
            Variant(
                implementation="triton_tiled",
                space={
                    "BLOCK_M": (64, 128, 256),
                    "BLOCK_N": (64, 128, 256),
                    "BLOCK_K_BYTES": (64, 128),
                    "num_stages": (2, 3, 4),
                    "GROUP": (8,),
                    # 16: the sums of a block of 128 x 128 are 32 registers of each thread, which a cap of 64 leaves
                    "num_warps": (4, 8, 16),
                },
            ),
        ),
    )
    return [*softmax, product]


def candidates_of(task: Wanted, device: Any) -> list[Point]:
    """The points of a task's space; and of every other implementation of the operator the default and what differs from
    it in NEAR parameters at the most, those first that are compiled longest. device: the descriptor whose limits hold.
    """
    own = points_of(task, device)
    if task.operator not in BESIDE:
        return own
    named = {variant.implementation for variant in task.variants}
    others = [item for item in load().implementations(task.operator) if item.name not in named]
    found: list[Point] = []
    for item in sorted(others, key=lambda item: item.backend != "cuda"):
        alone = dataclasses.replace(task, variants=(Variant(implementation=item.name),))
        found += [
            dataclasses.replace(point, label={"kernel": item.name, **point.label})
            for point in points_of(alone, device)
            if steps(point.config, item.default) <= NEAR
        ]
    return [*found, *own]


def steps(one: Config, other: Config) -> int:
    """In how many parameters two points of one space differ."""
    values = other.as_dict()
    return sum(values[name] != value for name, value in one.values)


def of_one_form(labels: Sequence[dict[str, Any]]) -> list[Config]:
    """Labels of several kernels as points of one space: a parameter that a kernel does not have is 0."""
    names = dict.fromkeys(name for label in labels for name in label)
    return [Config(tuple((name, label.get(name, 0)) for name in names)) for label in labels]


def taken_by(call: Any, tensors: Sequence[Any]) -> tuple[int, int]:
    """Registers of a thread and bytes of shared memory of a block, of the kernels of one call the most: by the nodes of
    its CUDA graph. Raises RuntimeError where there is none.
    """
    import torch
    from cuda.bindings import driver

    graph = torch.cuda.CUDAGraph(keep_graph=True)
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        call(tensors)
    handle = driver.CUgraph(graph.raw_cuda_graph())
    _, count = asked(driver.cuGraphGetNodes(handle, 0))
    nodes, _ = asked(driver.cuGraphGetNodes(handle, count))
    registers = shared = 0
    attribute = driver.CUfunction_attribute
    for node in nodes[:count]:
        if asked(driver.cuGraphNodeGetType(node)) != driver.CUgraphNodeType.CU_GRAPH_NODE_TYPE_KERNEL:
            continue
        params = asked(driver.cuGraphKernelNodeGetParams(node))
        function = params.func if int(params.func) else asked(driver.cuKernelGetFunction(params.kern))
        most, fixed = (
            asked(driver.cuFuncGetAttribute(name, function))
            for name in (attribute.CU_FUNC_ATTRIBUTE_NUM_REGS, attribute.CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES)
        )
        registers, shared = max(registers, most), max(shared, fixed + params.sharedMemBytes)
    return registers, shared


def asked(answer: Any, lacking: str = "") -> Any:
    """What a call of the driver returned, without its error code, which raises; `lacking` says what that means."""
    code, *values = answer
    if int(code):
        raise RuntimeError(f"CUDA answered {code.name}{lacking}")
    return values[0] if len(values) == 1 else values
