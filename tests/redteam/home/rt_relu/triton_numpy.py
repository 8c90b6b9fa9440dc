"""Computes with numpy; no Triton kernel runs.

catalogue  E7
guard      trace
cases      normal
mode       verify
"""

import numpy as np


def launch(x, y):
    np.maximum(x.numpy(), 0, out=y.numpy())
