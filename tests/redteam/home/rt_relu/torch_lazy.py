"""A tensor that computes when it is looked at.

catalogue  D3
guard      exact_type
cases      normal
mode       verify
lowered    new_memory
"""

import torch


class Lazy(torch.Tensor):
    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        plain = [torch.relu(item.as_subclass(torch.Tensor)) if isinstance(item, cls) else item for item in args]
        return function(*plain, **(kwargs or {}))


def run(x):
    return x.clone().as_subclass(Lazy)
