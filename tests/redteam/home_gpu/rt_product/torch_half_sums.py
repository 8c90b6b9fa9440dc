"""Sums of float16 behind a float32 interface.

catalogue  B1
guard      bound
cases      normal
mode       verify
"""

import torch


def run(a, b):
    before = torch.backends.cuda.matmul.allow_fp16_accumulation
    torch.backends.cuda.matmul.allow_fp16_accumulation = True
    try:
        return (a.half() @ b.half()).float()
    finally:
        torch.backends.cuda.matmul.allow_fp16_accumulation = before
