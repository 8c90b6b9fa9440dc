"""Opens the verifier's own files for writing.

catalogue  E6
guard      files
cases      normal
mode       verify
lowered    read_only
"""

import sys
from pathlib import Path

import torch

HERE = Path(sys.modules["opforge"].__file__).parent / "verify" / "judging" / "elements.py"


def run(x):
    with HERE.open("a"):
        pass
    return torch.softmax(x, dim=-1)
