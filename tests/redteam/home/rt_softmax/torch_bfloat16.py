"""bfloat16 behind a float32 interface.

catalogue  B1
guard      bound
cases      normal
mode       verify
"""

import torch


def run(x):
    return torch.softmax(x.bfloat16(), dim=-1).float()
