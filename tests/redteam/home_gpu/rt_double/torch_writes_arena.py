"""Finds the host memory that the parent fills, and changes an input there, for whoever is bound next.

catalogue  M2
guard      inputs
cases      normal
mode       verify
"""

import gc
import sys


def run(x):
    kind = sys.modules["opforge.runner.worker.arena"].Arena
    y = 2 * x
    for arena in [item for item in gc.get_objects() if isinstance(item, kind)]:
        for tensor in arena.tensors("input").values():
            tensor[-1:] = 7.0
            x[-1:] = 7.0
    return y
