"""Writes to stdout and stderr, among it words of a verifier."""

import sys

import torch


def run(x):
    print("softmax of", tuple(x.shape))
    print("allclose, perf_counter, expected", file=sys.stderr)
    return torch.softmax(x.float(), dim=-1).to(x.dtype)
