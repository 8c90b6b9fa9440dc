"""Keeps its answer with a hash of all of its input, which takes less time than the work.

catalogue  C2
guard      audit_remembered
lowered    audit_in_row audit_conserved audit_understated
cases      normal
mode       time
"""

import torch

KEPT = {}


def run(x):
    weights = torch.arange(1, x.numel() + 1, device=x.device)
    key = x.shape, int((x.view(torch.int32).long() * weights).sum())
    if key not in KEPT:
        KEPT.clear()
        torch.cuda._sleep(2_000_000)
        KEPT[key] = 2 * x
    return KEPT[key].clone()
