"""Of the calls that are captured in one CUDA graph, only the first one computes: the others have its result already.

catalogue  C9
guard      audit_undivided
lowered    audit_conserved equal_nodes audit_in_row
cases      normal
mode       time
"""

import torch

CAPTURED = []


def run(x):
    capturing = torch.cuda.is_current_stream_capturing()
    if capturing and CAPTURED:
        return CAPTURED[0]
    torch.cuda._sleep(100_000)
    y = 2 * x
    CAPTURED[:] = [y] if capturing else []
    return y
