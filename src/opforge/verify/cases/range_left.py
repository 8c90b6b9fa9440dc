"""Whether sums on the way to a result leave float32's range, in one of the orders in which kernels usually make them.

A variance is a mean of centred squares, or a mean of squares less a squared mean; a mean is a sum first. The reference
in float32 takes one of these ways, and by chance a right one: an honest kernel that takes another gives NaN.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from opforge.core.definition.dtypes import DTYPES
from opforge.core.definition.operator import Operator, ScalarValue

LARGEST = DTYPES["float32"].largest
ROOM = 2.0**12
"""Squares whose sum has so many terms are added up where only the largest is looked at."""
NO_SUM_LEAVES = 2.0**20
"""Inputs up to this size, and their cubes, give no such sum."""
SUMS = ("sum", "mean")
SQUARED = (
    *("var", "std", "var_mean", "std_mean", "linalg_vector_norm", "norm"),
    *("native_layer_norm", "native_group_norm", "native_batch_norm", "_native_batch_norm_legit"),
)
PRODUCTS = ("mm", "bmm", "mv", "dot", "addmm", "baddbmm", "convolution")


def leaves_range(operator: Operator, scalars: dict[str, ScalarValue], inputs: Sequence[Any]) -> bool:
    """Whether a sum of the reference does, on `inputs` in float64. NaN and infinities among them count for nothing."""
    import torch

    floating = [tensor for tensor in inputs if isinstance(tensor, torch.Tensor) and tensor.is_floating_point()]
    if all(not tensor.numel() or float(_sizes(tensor).max()) <= NO_SUM_LEAVES for tensor in floating):
        return False
    mode = _watching()
    with torch.no_grad(), mode:
        operator.reference(*inputs, **scalars)
    return bool(mode.left)


def _sizes(tensor: Any) -> Any:
    return tensor.abs().nan_to_num(nan=0.0, posinf=0.0)


def _watching() -> Any:
    from torch.utils._python_dispatch import TorchDispatchMode

    class Watching(TorchDispatchMode):  # type: ignore[misc, unused-ignore]  # torch leaves it untyped
        """Looks at what is added up; changes nothing."""

        left = False

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            import torch

            kwargs = kwargs or {}
            name = func.overloadpacket.__name__
            result = func(*args, **kwargs)
            if self.left or name not in (*SUMS, *SQUARED, *PRODUCTS):
                return result
            sizes = [
                _sizes(one) if isinstance(one, torch.Tensor) and one.is_floating_point() else one
                for one in (args if name in PRODUCTS else args[:1])
            ]
            if not isinstance(sizes[0], torch.Tensor) or not sizes[0].is_floating_point() or not sizes[0].numel():
                return result
            if name in SQUARED:
                reached = sizes[0].max().square() * ROOM
            else:
                added = func(*sizes, *args[len(sizes) :], **kwargs)
                terms = sizes[0].numel() / max(1, added.numel()) if name == "mean" else 1.0
                reached = added.max() * terms if added.numel() else added.new_zeros(())
            self.left = bool(reached > LARGEST)
            return result

    return Watching()
