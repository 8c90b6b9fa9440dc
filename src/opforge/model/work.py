"""What an operator of PyTorch's must do at the least: FLOPs and bytes, from the shapes of its call alone.

A product of matrices counts two operations for each multiply-add. Of elementwise arithmetic each step counts one, an
exponential too, as in the operators' own definitions. Bytes are those of a kernel that reads each input once and writes
each output once; rows that are looked up count, not the table that they lie in. Causal attention counts the scores that
are seen.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from opforge.core.definition.operator import Cost
from opforge.model.nodes import Shape, Work

Arguments = Mapping[str, Any]
Flops = Callable[[Arguments, Sequence[Shape]], int]

STEPS = {
    "silu": 4, "gelu": 5, "sigmoid": 3, "tanh": 1, "softplus": 3, "hardswish": 4, "mish": 5, "elu": 3, "pow": 1,
    "softmax": 4, "_softmax": 4, "_safe_softmax": 4, "log_softmax": 4, "_log_softmax": 4, "_softmax_backward_data": 3,
    "_log_softmax_backward_data": 3, "layer_norm": 7, "native_layer_norm": 7, "native_layer_norm_backward": 12,
    "rms_norm": 4, "_fused_rms_norm": 4, "_fused_rms_norm_backward": 9, "batch_norm": 7, "native_batch_norm": 7,
    "_native_batch_norm_legit_functional": 7, "_native_batch_norm_legit": 7, "cudnn_batch_norm": 7,
    "_batch_norm_with_update": 7, "batch_norm_backward": 12, "native_batch_norm_backward": 12,
    "_native_batch_norm_legit_no_training": 2, "group_norm": 7, "native_group_norm": 7, "silu_backward": 7,
    "gelu_backward": 8, "sigmoid_backward": 3, "tanh_backward": 3, "threshold_backward": 1, "dropout": 1,
    "native_dropout": 1, "native_dropout_backward": 1, "cumsum": 1, "addcmul": 3, "addcdiv": 3, "lerp": 3, "var": 4,
    "var_mean": 5, "std": 4, "_foreach_addcdiv": 3,
}  # fmt: skip
"""Operations for each element of the first input."""

ONE_EACH = frozenset({
    "add", "sub", "rsub", "mul", "div", "neg", "abs", "exp", "exp2", "log", "log2", "log1p", "expm1", "sqrt",
    "rsqrt", "reciprocal", "sin", "cos", "erf", "relu", "relu6", "clamp", "clamp_min", "clamp_max", "maximum",
    "minimum", "square", "hardtanh", "leaky_relu", "add_scalar", "sum", "mean", "amax", "amin", "max", "min",
    "prod", "cumsum", "norm", "linalg_vector_norm", "logsumexp", "nll_loss", "nll_loss_forward", "max_pool2d",
    "max_pool2d_with_indices", "avg_pool2d", "adaptive_avg_pool2d", "_adaptive_avg_pool2d", "floor",
    "remainder", "fmod", "__rmul__", "__radd__", "index_add", "scatter_add",
})  # fmt: skip
"""Arithmetic with one operation for each element of the larger side."""

NOTHING_READ = frozenset({
    "full", "full_like", "zeros", "zeros_like", "ones", "ones_like", "new_zeros", "new_ones", "new_full",
    "arange", "scalar_tensor", "eye", "rand", "randn", "rand_like", "randn_like", "randint", "bernoulli",
})  # fmt: skip
NOTHING_DONE = frozenset({
    "empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "_assert_tensor_metadata",
    "_assert_scalar", "sym_size", "sym_numel", "sym_stride", "_unsafe_view", "lift_fresh", "detach", "alias",
    "getitem", "device",
})  # fmt: skip
LOOKED_UP = {
    "embedding": ("weight",), "index": ("self",), "index_select": ("self",), "gather": ("self",),
    "take_along_dim": ("self",), "grid_sampler_2d": (),
}  # fmt: skip
"""Operators that read of these arguments as much as they write."""


def _last(shape: Shape) -> int:
    return shape.sizes[-1] if shape.sizes else 1


def _product(left: str) -> Flops:
    """2 x elements of the result x terms of each, which are the last axis of the argument `left`."""
    return lambda given, outputs: 2 * outputs[0].elements * _last(given[left])


def _convolution(given: Arguments, outputs: Sequence[Shape]) -> int:
    weight: Shape = given["weight"]
    each = weight.elements // max(1, weight.sizes[0])
    points: Shape = given["input"] if given.get("transposed") else outputs[0]
    return 2 * each * points.elements


def _convolution_transposed(given: Arguments, outputs: Sequence[Shape]) -> int:
    weight: Shape = given["weight"]
    given_points: Shape = given["input"]
    return 2 * given_points.elements * (weight.elements // max(1, weight.sizes[0]))


def _convolution_backward(given: Arguments, outputs: Sequence[Shape]) -> int:
    """A product for the input's slopes and one for the weight's, as far as they are asked for."""
    weight: Shape = given["weight"]
    mask = given["output_mask"]
    each = weight.elements // max(1, weight.sizes[0])
    wide: Shape = given["input"] if given.get("transposed") else given["grad_output"]
    return 2 * each * wide.elements * (bool(mask[0]) + bool(mask[1]))


def seen_scores(rows: int, columns: int, causal: bool) -> int:
    """Scores of attention that a query may see, the mask's corner at the top left.

    >>> seen_scores(3, 3, True), seen_scores(3, 2, True), seen_scores(3, 2, False)
    (6, 5, 6)
    """
    if not causal:
        return rows * columns
    square = min(rows, columns)
    return square * (square + 1) // 2 + max(0, rows - columns) * columns


def _attention(given: Arguments, products: Callable[[int, int], int]) -> int:
    query: Shape = given["query"]
    key: Shape = given["key"]
    value: Shape = given["value"]
    scores = seen_scores(query.sizes[-2], key.sizes[-2], bool(given.get("is_causal")))
    return 2 * math.prod(query.sizes[:-2]) * scores * products(_last(query), _last(value))


def _attention_forward(given: Arguments, outputs: Sequence[Shape]) -> int:
    return _attention(given, lambda head, value: head + value)


def _attention_backward(given: Arguments, outputs: Sequence[Shape]) -> int:
    """The scores again, and four products: of the slopes with values and keys, queries, of the weights with slopes."""
    return _attention(given, lambda head, value: 3 * head + 2 * value)


def _einsum(given: Arguments, outputs: Sequence[Shape]) -> int:
    terms = given["equation"].replace(" ", "").split("->")[0].split(",")
    tensors = given["tensors"]
    if "..." in given["equation"] or len(terms) != len(tensors):
        return 2 * outputs[0].elements * _last(tensors[0])
    sizes: dict[str, int] = {}
    for term, tensor in zip(terms, tensors, strict=True):
        sizes |= dict(zip(term, tensor.sizes, strict=True))
    return max(1, len(terms)) * math.prod(sizes.values())


def _grouped(given: Arguments, outputs: Sequence[Shape]) -> int:
    """Rows of one side meet the matrix of their group alone: where both are 2-D the groups share the terms."""
    return (
        2
        * outputs[0].elements
        * _last(given["self"])
        // (outputs[0].sizes[0] if len(given["self"].sizes) == 2 and len(outputs[0].sizes) == 3 else 1)
    )


def _grouped_rows(given: Arguments, outputs: Sequence[Shape]) -> int:
    """Rows, each times the matrix of its group: what transformers computes a layer of experts with."""
    return 2 * outputs[0].elements * _last(tensors_in(list(given.values()))[0])


def _grouped_backward(given: Arguments, outputs: Sequence[Shape]) -> int:
    """A product for the rows' slopes and one for the matrices'."""
    slopes, *_ = tensors_in(list(given.values()))
    matrix = max(outputs, key=lambda shape: len(shape.sizes))
    return 4 * slopes.sizes[0] * math.prod(matrix.sizes[-2:])


PRODUCTS: Mapping[str, Flops] = {
    "mm": _product("self"), "bmm": _product("self"), "matmul": _product("self"), "linear": _product("input"),
    "addmm": _product("mat1"), "baddbmm": _product("batch1"), "mv": _product("self"), "dot": _product("self"),
    "grouped_mm_fallback": _grouped_rows, "grouped_mm_fallback_backward": _grouped_backward,
    "_scaled_mm": _product("self"), "_grouped_mm": _grouped, "einsum": _einsum,
    "convolution": _convolution, "_convolution": _convolution, "conv1d": _convolution, "conv2d": _convolution,
    "conv3d": _convolution, "conv_transpose1d": _convolution_transposed, "conv_transpose2d": _convolution_transposed,
    "mkldnn_convolution": _convolution, "convolution_backward": _convolution_backward,
    "scaled_dot_product_attention": _attention_forward,
    "_scaled_dot_product_flash_attention": _attention_forward,
    "_scaled_dot_product_flash_attention_for_cpu": _attention_forward,
    "_scaled_dot_product_efficient_attention": _attention_forward,
    "_scaled_dot_product_cudnn_attention": _attention_forward,
    "_scaled_dot_product_attention_math": _attention_forward,
    "_scaled_dot_product_flash_attention_backward": _attention_backward,
    "_scaled_dot_product_flash_attention_for_cpu_backward": _attention_backward,
    "_scaled_dot_product_efficient_attention_backward": _attention_backward,
    "_scaled_dot_product_cudnn_attention_backward": _attention_backward,
}  # fmt: skip
"""Operators that matrix units compute, and their FLOPs."""


def tensors_in(value: Any) -> list[Shape]:
    """Every Shape in an argument, lists included."""
    if isinstance(value, Shape):
        return [value]
    return [shape for one in value for shape in tensors_in(one)] if isinstance(value, list | tuple) else []


def work_of(base: str, arguments: Arguments, outputs: Sequence[Shape], *, alias: bool) -> Work:
    """The least work of one call.

    base      the operator's name without overload ("linear"), of an operation in place without its underscore too
    alias     whether the outputs are views of an input
    """
    name = base if base in PRODUCTS else base.rstrip("_") or base
    if alias or name in NOTHING_DONE or not outputs or (name == "dropout" and not arguments.get("train", True)):
        return Work(cost=Cost(flops=0, bytes_read=0, bytes_written=0), unit="vector")
    written = sum(output.bytes for output in outputs)
    cost = Cost(
        flops=_flops(name, arguments, outputs), bytes_read=_read(name, arguments, written), bytes_written=written
    )
    return Work(cost=cost, unit="matrix" if name in PRODUCTS else "vector")


def _read(name: str, arguments: Arguments, written: int) -> int:
    if name in NOTHING_READ:
        return 0
    left_out = LOOKED_UP.get(name)
    if name == "copy":
        left_out = ("self",)
    read = sum(
        tensor.bytes
        for key, value in arguments.items()
        if left_out is None or key not in left_out
        for tensor in tensors_in(value)
    )
    return read + written if name in LOOKED_UP else read


def _flops(name: str, arguments: Arguments, outputs: Sequence[Shape]) -> int:
    if name in PRODUCTS:
        return PRODUCTS[name](arguments, outputs)
    given = [tensor for value in arguments.values() for tensor in tensors_in(value)]
    if name in STEPS:
        return STEPS[name] * max((tensor.elements for tensor in given[:1]), default=0)
    if name not in ONE_EACH:
        return 0
    return max((tensor.elements for tensor in (*given, *outputs) if "float" in tensor.dtype), default=0)
