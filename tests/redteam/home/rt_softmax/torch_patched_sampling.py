"""Divides the samples of the worker's own clock by ten, hidden from the snapshot.

catalogue  D4
guard      parent_clock
cases      normal
mode       time
lowered    snapshot
"""

import torch

import opforge.runner.worker.sample_requests as shapes

real = shapes.sampler()


def tenth(*args, **kwargs):
    taken = real(*args, **kwargs)
    return taken._replace(samples=[sample / 10 for sample in taken.samples], led=taken.led / 10)


shapes.sampler = lambda: tenth


def run(x):
    return torch.softmax(x, dim=-1)
