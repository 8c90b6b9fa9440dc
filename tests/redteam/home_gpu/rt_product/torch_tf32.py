"""Products with ten bits of significand behind a float32 interface.

catalogue  B1
guard      bound
cases      normal
mode       verify
"""

import torch


def run(a, b):
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = True
    try:
        return a @ b
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before
