"""where(x > 0, x, 0) turns NaN into 0.

catalogue  B4
guard      cases_special
cases      normal special
mode       verify
"""

import torch


def run(x):
    return torch.where(x > 0, x, torch.zeros(()))
