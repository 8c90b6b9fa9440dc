"""A tensor that computes when it is looked at.

catalogue  D3
guard      exact_type
lowered    new_memory
cases      normal
mode       verify
"""

import torch


class Lazy(torch.Tensor):
    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        plain = [2 * item.as_subclass(torch.Tensor) if isinstance(item, cls) else item for item in args]
        return function(*plain, **(kwargs or {}))


def run(x):
    return x.clone().as_subclass(Lazy)
