"""Of the calls that are captured in one graph, every second one does nothing; the work is short.

catalogue  M1
guard      equal_nodes
lowered    audit_conserved audit_replayed audit_undivided audit_understated audit_in_row
cases      normal
mode       time
"""

import torch

CAPTURED = []


def run(x):
    if not torch.cuda.is_current_stream_capturing():
        CAPTURED.clear()
    elif CAPTURED:
        return CAPTURED.pop()
    torch.cuda._sleep(10_000)
    y = 2 * x
    if torch.cuda.is_current_stream_capturing():
        CAPTURED.append(y)
    return y
