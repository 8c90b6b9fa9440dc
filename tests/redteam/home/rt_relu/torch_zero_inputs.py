"""Sets the input to 0 and returns 0, in case the reference runs afterwards.

catalogue  A5
guard      pristine
cases      normal
mode       verify
"""

import torch


def run(x):
    x.zero_()
    return torch.zeros(x.shape)
