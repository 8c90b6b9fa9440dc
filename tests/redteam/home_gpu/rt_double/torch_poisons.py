"""An index out of range: a device-side assertion, after which every call of this process on the device fails."""

import torch


def run(x):
    return 2 * x[torch.full((x.numel(),), 1 << 40, device=x.device)]
