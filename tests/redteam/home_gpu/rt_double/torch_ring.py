"""Returns the outputs of four graphs in turn: the fifth call overwrites what the first one returned.

catalogue  C3
guard      new_memory
cases      twins
mode       verify
"""

import torch

GRAPHS, TURN = {}, [0]


def run(x):
    TURN[0] += 1
    key = x.shape, TURN[0] % 4
    if key not in GRAPHS:
        kept, graph = x.clone(), torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = 2 * kept
        GRAPHS[key] = graph, kept, y
    graph, kept, y = GRAPHS[key]
    kept.copy_(x)
    graph.replay()
    return y
