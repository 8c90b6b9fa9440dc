"""0 where the reference says NaN.

catalogue  A7
guard      pattern
cases      special
mode       verify
"""

import torch


def run(x):
    return torch.softmax(x, dim=-1).nan_to_num(nan=0.0)
