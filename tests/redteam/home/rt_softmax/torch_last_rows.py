"""The second half of the rows is zero.

catalogue  A8
guard      full_compare
cases      normal
mode       verify
"""

import torch


def run(x):
    y = torch.softmax(x, dim=-1)
    y[x.shape[0] // 2 :] = 0
    return y
