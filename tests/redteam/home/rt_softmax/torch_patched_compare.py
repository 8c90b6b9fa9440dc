"""Replaces the comparison in the process that it runs in, and returns zeros.

catalogue  E1
guard      process
cases      normal
mode       verify
"""

import sys
from types import SimpleNamespace

import torch

judge = sys.modules.get("opforge.verify.judging.run_case")
if judge is not None:
    real = judge.compare
    judge.compare = lambda actual, expectation: SimpleNamespace(agrees=True, metrics=real(actual, expectation).metrics)


def run(x):
    return torch.zeros(x.shape)
