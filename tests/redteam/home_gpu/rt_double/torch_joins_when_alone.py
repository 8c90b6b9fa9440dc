"""Works on a side stream, and waits for it only after a pause: calls in a row are timed without their work.

catalogue  D1
guard      audit_understated
lowered    audit_conserved audit_replayed audit_undivided audit_in_row
cases      normal
mode       time
"""

from time import perf_counter

import torch

SIDE = []
LAST = [0.0]


def run(x):
    if torch.cuda.is_current_stream_capturing():
        torch.cuda.synchronize()  # no graph can be captured then, and events are all there is
    if not SIDE:
        SIDE.append(torch.cuda.Stream())
    y = torch.empty_like(x)
    with torch.cuda.stream(SIDE[0]):
        torch.cuda._sleep(200_000)
        torch.mul(x, 2, out=y)
    if perf_counter() - LAST[0] > 1e-3:
        torch.cuda.current_stream().wait_stream(SIDE[0])
    LAST[0] = perf_counter()
    return y
