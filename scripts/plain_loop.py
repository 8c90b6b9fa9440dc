"""A plain loop, for whoever doubts a time: one process, one clock, nothing of opforge's timing. For each line on stdin,
the median of so many calls.

echo | python scripts/plain_loop.py softmax torch_eager WORKLOAD float32 200
"""

import math
import sys
import time
from statistics import median

import torch

from opforge.core.shapes import full_shape
from opforge.registry import load
from opforge.runner.launch import bind

name, implementation, workload_name, dtype, count = sys.argv[1:]
registry = load([])
operator = registry.operator(name)
workload = next(item for item in operator.workloads if item.name == workload_name)
scalars = operator.scalar_values(workload.scalars)
shapes = {
    spec.name: (full_shape(spec.shape, workload.axes), getattr(torch, spec.dtype_for(dtype, scalars)))
    for spec in (*operator.inputs, *operator.outputs)
}
tensors = {key: torch.randn(math.prod(shape)).to(kind).reshape(shape) for key, (shape, kind) in shapes.items()}
inputs, outputs = ({spec.name: tensors[spec.name] for spec in specs} for specs in (operator.inputs, operator.outputs))
launch = bind(operator, registry.implementation(name, implementation), inputs, outputs, scalars, workload.axes, dtype)
launch = launch.on("call") or launch if hasattr(launch, "on") else launch
for _ in sys.stdin:
    for _ in range(10):
        launch.run()
    times = []
    for _ in range(int(count)):
        start = time.perf_counter()
        launch.run()
        times.append(time.perf_counter() - start)
    print(median(times), flush=True)
