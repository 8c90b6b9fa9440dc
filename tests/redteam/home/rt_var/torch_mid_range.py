"""Wrong where the largest value lies between 1e12 and 1e13, where a row of values drawn one by one seldom ends.

catalogue  M6
guard      cases_hidden
cases      normal hidden
mode       verify
"""

import torch


def run(x):
    right = x.var(dim=-1, correction=0)
    largest = x.abs().amax(dim=-1) if x.numel() else right
    return torch.where((largest > 1e12) & (largest < 1e13), 2 * right, right)
