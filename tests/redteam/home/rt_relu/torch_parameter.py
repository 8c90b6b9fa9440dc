"""A subclass of Tensor.

catalogue  A6
guard      exact_type
cases      normal
mode       verify
"""

import torch


def run(x):
    return torch.nn.Parameter(torch.relu(x), requires_grad=False)
