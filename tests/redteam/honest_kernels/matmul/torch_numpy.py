"""numpy's product."""

import numpy as np
import torch


def run(a, b, precision):
    return torch.from_numpy(np.matmul(a.float().numpy(), b.float().numpy())).to(a.dtype)
