"""The right values in another dtype.

catalogue  A6
guard      exact_shape
cases      normal
mode       verify
"""

import torch


def run(x):
    return torch.softmax(x.double(), dim=-1)
