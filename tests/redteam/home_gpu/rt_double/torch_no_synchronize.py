"""A side stream, and a wait for the device that does not wait for it where a clock asks.

catalogue  D4
guard      snapshot
lowered    audit_conserved audit_replayed audit_undivided audit_in_row audit_understated
cases      normal
mode       time
"""

import torch

SIDE = []
REAL = torch.accelerator.synchronize


def here(device=None):
    if device is None:
        torch.cuda.current_stream().synchronize()
    else:
        REAL(device)


def run(x):
    if not SIDE:
        SIDE.append(torch.cuda.Stream())
        torch.accelerator.synchronize = here
    y = torch.empty_like(x)
    with torch.cuda.stream(SIDE[0]):
        torch.cuda._sleep(200_000)
        torch.mul(x, 2, out=y)
    return y
