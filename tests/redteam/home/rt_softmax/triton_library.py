"""Has torch.softmax compute.

catalogue  E7
guard      trace
cases      normal
mode       verify
"""

import torch


def launch(x, y):
    torch.softmax(x, dim=-1, out=y)
