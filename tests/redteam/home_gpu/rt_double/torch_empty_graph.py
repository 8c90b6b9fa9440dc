"""Does nothing while a CUDA graph is captured: its replay takes no time, and computes nothing.

catalogue  C6
guard      audit_replayed
lowered    audit_conserved audit_undivided audit_understated audit_in_row
cases      normal
mode       time
"""

import torch

KEPT = []


def run(x):
    if torch.cuda.is_current_stream_capturing() and KEPT and KEPT[0].shape == x.shape:
        return KEPT[0]
    torch.cuda._sleep(100_000)
    KEPT[:] = [2 * x]
    return KEPT[0]
