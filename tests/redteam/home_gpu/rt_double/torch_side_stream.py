"""Most of the work is on a stream that the events around the call do not see, and a graph does not hold.

The little that is on the call's own stream makes a time of a microsecond or two. Without it a graph of calls is empty,
takes a nanosecond a call, and a sample of it is a million calls, whose work on the side takes minutes to capture: most
runs ended in a Timeout, with the guard up or down.

catalogue  D1
guard      audit_understated
lowered    audit_conserved audit_replayed audit_undivided audit_in_row
cases      normal
mode       time
"""

import torch

SIDE = []


def run(x):
    if not SIDE:
        SIDE.append(torch.cuda.Stream())
    y = torch.empty_like(x)
    with torch.cuda.stream(SIDE[0]):
        torch.cuda._sleep(400_000)
        torch.mul(x, 2, out=y)
    torch.mul(x[:1], 2, out=y[:1])
    return y
