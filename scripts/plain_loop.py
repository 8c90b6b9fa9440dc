"""A plain loop, for whoever doubts a time: one process, one clock, nothing of opforge's timing. For each line on stdin,
the median of so many samples, in seconds per call. A sample is as many calls as take a millisecond; calls for 0.1 s go
before them, since a user's loop goes on; a line may name other numbers of samples and seconds. Before that blocks are
taken from the heap until results are made in two places: by what a process has freed it is two, three or four of them,
and equal loops take unequal times. On a GPU the calls of a sample are one CUDA graph between two events, or where they
cannot be captured, calls between two events.

echo | python scripts/plain_loop.py softmax torch_eager lead=12x256,cols=256 float32 60
echo | python scripts/plain_loop.py softmax torch_eager attention_llama3_8b bfloat16 60 cuda
"""

import sys
import time
from statistics import median

import torch

from opforge.core.definition.own_shapes import workload_named
from opforge.core.definition.shapes import full_shape
from opforge.registry import load
from opforge.runner.worker.launch import bind

RAMP_S, SAMPLE_S, MOST = 0.1, 1e-3, 32
name, implementation, workload_name, dtype, count, *device = sys.argv[1:]
on_gpu, where = device == ["cuda"], device[0] if device else "cpu"
registry = load([])
operator = registry.operator(name)
workload = workload_named(operator, workload_name) or sys.exit(f"{name} has no workload {workload_name}")
scalars = operator.scalar_values(workload.scalars)
shapes = {
    spec.name: (full_shape(spec.shape, workload.axes), getattr(torch, spec.dtype_for(dtype, scalars)))
    for spec in (*operator.inputs, *operator.outputs)
}
tensors = {
    # whole numbers are indices, of something that has at least one element
    key: torch.randn(shape, device=where).to(kind)
    if kind.is_floating_point
    else torch.zeros(shape, device=where, dtype=kind)
    for key, (shape, kind) in shapes.items()
}
inputs, outputs = ({spec.name: tensors[spec.name] for spec in specs} for specs in (operator.inputs, operator.outputs))
launch = bind(operator, registry.implementation(name, implementation), inputs, outputs, scalars, workload.axes, dtype)
launch = launch.on("call") or launch if hasattr(launch, "on") else launch


def places():
    """In how many places the results of calls are made, when it has come round."""
    seen = []
    for _ in range(24):
        launch.run()
        seen.append([one.data_ptr() for one in launch.read().values()])
    return len({place for now in seen[12:] for place in now})


taken = []
while not on_gpu and len(taken) < MOST and places() > 2 * len(outputs):
    taken.append([torch.empty(one.nbytes + 4096 * len(taken), dtype=torch.uint8) for one in outputs.values()])
    [torch.empty(16 * (at % 8), dtype=torch.uint8) for at in range(256)]


def several(batch):
    """The calls of a sample, as one function."""

    def calls():
        for _ in range(batch):
            launch.run()

    if on_gpu:
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph):
                calls()
        except RuntimeError:
            return calls
        return graph.replay
    return calls


def seconds(calls):
    if not on_gpu:
        start = time.perf_counter()
        calls()
        return time.perf_counter() - start
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    calls()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) / 1e3


for line in sys.stdin:
    wanted, ramp_s = line.split() or (count, RAMP_S)
    calls, ramp = 0, time.perf_counter() + float(ramp_s)
    while time.perf_counter() < ramp:
        launch.run()
        if on_gpu:
            torch.cuda.synchronize()
        calls += 1
    batch = max(1, round(calls * SAMPLE_S / float(ramp_s)))
    sample = several(batch)
    if on_gpu:
        # a graph of so few calls as fit into a sample with the host's waiting has microseconds of its start in it
        batch = max(batch, round(SAMPLE_S * batch / median(seconds(sample) for _ in range(5))))
        sample = several(batch)
        seconds(sample)
    print(median(seconds(sample) / batch for _ in range(int(wanted))), flush=True)
