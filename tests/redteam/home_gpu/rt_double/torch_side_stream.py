"""Most of the work is on a stream that the events around the call do not see.

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
    return y
