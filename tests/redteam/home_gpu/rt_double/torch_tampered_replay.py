"""Replaces the replay of graphs: what is timed is an empty one.

catalogue  D4
guard      snapshot
lowered    audit_conserved audit_replayed audit_undivided audit_understated audit_in_row
cases      normal
mode       time
"""

import torch

REAL = torch.cuda.CUDAGraph.replay
TURN = [0]


def seldom(graph):
    TURN[0] += 1
    if TURN[0] % 16 < 2:
        REAL(graph)


def run(x):
    torch.cuda.CUDAGraph.replay = seldom
    torch.cuda._sleep(100_000)
    return 2 * x
