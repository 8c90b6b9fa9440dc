"""Takes a factor from a file beside it, which may be changed after it was verified.

catalogue  E6
guard      reads
cases      normal
mode       verify
"""

from pathlib import Path

import torch


def run(x):
    return torch.softmax(x, dim=-1) * float(Path(__file__).with_name("factor.txt").read_text())
