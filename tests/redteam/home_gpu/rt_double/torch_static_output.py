"""Returns the static output of its CUDA graph: the memory of its last result, which its caller may still hold.

catalogue  C3
guard      new_memory
cases      twins
mode       verify
"""

import torch

GRAPHS = {}


def run(x):
    if x.shape not in GRAPHS:
        kept, graph = x.clone(), torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = 2 * kept
        GRAPHS[x.shape] = graph, kept, y
    graph, kept, y = GRAPHS[x.shape]
    kept.copy_(x)
    graph.replay()
    return y
