"""A thread pool that is idle between calls."""

from concurrent.futures import ThreadPoolExecutor

import torch

POOL = ThreadPoolExecutor(2)


def run(x):
    return POOL.submit(torch.softmax, x.float(), -1).result().to(x.dtype)
