"""Keeps answers in a file, from one process to the next.

catalogue  C5
guard      files
cases      normal
mode       verify
lowered    read_only
"""

from pathlib import Path

import torch

PLACE = Path("/var/tmp/opforge-redteam-answers")


def run(x):
    y = torch.softmax(x, dim=-1)
    PLACE.write_bytes(y.numpy().tobytes())
    return y
