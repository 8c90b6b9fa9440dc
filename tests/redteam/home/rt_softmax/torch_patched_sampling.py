"""Divides the samples of the worker's own clock by ten, hidden from the snapshot.

catalogue  D4
guard      audit_understated
cases      normal
mode       time
lowered    snapshot
"""

import torch

import opforge.runner.clocks as clocks

real = clocks.host_samples


def tenth(*args, **kwargs):
    return [sample / 10 for sample in real(*args, **kwargs)]


clocks.host_samples = tenth


def run(x):
    return torch.softmax(x, dim=-1)
