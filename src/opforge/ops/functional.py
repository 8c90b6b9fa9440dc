"""Functions with the names, arguments and defaults of PyTorch's, computed by opforge's operators where one fits.

    from opforge.ops import functional as F

    F.softmax(x, dim=-1)            # as torch.nn.functional.softmax
    F.softmax.why(x, dim=0)         # which operator and kernel, or why PyTorch's own function computes it

A call that no operator fits goes to PyTorch's function of that name with the very arguments, so its result, its errors
and its gradients are PyTorch's. Such calls are: float64 and whole numbers, dtypes or devices that differ, `out=` and
`inplace=`, products whose gradients are wanted, and what each function here says of itself. Under torch.autocast
PyTorch decides the dtypes, so everything that autocast knows goes to PyTorch too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as torch_functional

from opforge import ops
from opforge.ops.lowering import DTYPES, Lowered, like, unfit

_OPERATORS = (
    "add_scalar",
    "attention",
    "attention_backward",
    "batched_matmul",
    "bias_add",
    "broadcast_add",
    "cross_entropy",
    "gelu",
    "layernorm",
    "linear",
    "log_softmax",
    "matmul",
    "relu",
    "rmsnorm",
    "silu",
    "silu_mul",
    "softmax",
    "vector_add",
)
# made now, and not while torch.compile traces a call
for _name in _OPERATORS:
    getattr(ops, _name)


def _along(operator: str, x: Any, dim: int | None, dtype: torch.dtype | None) -> Lowered | str:
    """An operator over the last axis, along `dim`. Another axis is moved there where that costs no copy."""
    if dim is None or not isinstance(dim, int):
        return "no dim is given"
    if dtype is not None and isinstance(x, Tensor) and dtype in DTYPES:
        x = x.to(dtype)
    elif dtype is not None:
        return f"{operator} has no {dtype}"
    if reason := unfit(operator, x):
        return reason
    if not -x.ndim <= dim < x.ndim:
        return f"dim {dim} is none of {x.ndim} axes"
    if dim in (-1, x.ndim - 1):
        return Lowered(operator, (x,))
    moved = x.movedim(dim, -1)
    if not moved.is_contiguous():
        return f"dim {dim} is not the innermost in memory: {operator} would need two copies"
    return Lowered(operator, (moved,), finish=lambda y: y.movedim(-1, dim))


@like(torch_functional.softmax)
def softmax(
    input: Tensor, dim: int | None = None, _stacklevel: int = 3, dtype: torch.dtype | None = None
) -> Lowered | str:
    """Softmax along `dim`, as torch.nn.functional.softmax. By softmax where `dim` is innermost in memory."""
    return _along("softmax", input, dim, dtype)


@like(torch_functional.log_softmax)
def log_softmax(
    input: Tensor, dim: int | None = None, _stacklevel: int = 3, dtype: torch.dtype | None = None
) -> Lowered | str:
    """Logarithm of softmax along `dim`, as torch.nn.functional.log_softmax. By log_softmax, like softmax."""
    return _along("log_softmax", input, dim, dtype)


def _normalized(operator: str, x: Any, shape: Any, parameters: Sequence[Any], eps: float) -> Lowered | str:
    """A norm over the last axes, which are made one; parameters are of their shape."""
    if any(parameter is None for parameter in parameters):
        return f"{operator} takes {'a weight and a bias' if len(parameters) == 2 else 'a weight'}"
    if reason := unfit(operator, x, *parameters):
        return reason
    shape = tuple(shape) if isinstance(shape, Sequence) else (shape,)
    count = len(shape)
    if not count or tuple(x.shape[-count:]) != shape or any(tuple(item.shape) != shape for item in parameters):
        return f"the last axes are not {shape}"
    if count == 1:
        return Lowered(operator, (x, *parameters), {"eps": float(eps)})
    if not x.is_contiguous():
        return f"{count} axes in strides cannot be made one without a copy"
    whole = x.shape
    return Lowered(
        operator,
        (x.flatten(-count), *(item.flatten() for item in parameters)),
        {"eps": float(eps)},
        lambda y: y.view(whole),
    )


@like(torch_functional.layer_norm)
def layer_norm(
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Lowered | str:
    """Layer norm over the last axes, as torch.nn.functional.layer_norm. By layernorm, given weight and bias."""
    return _normalized("layernorm", input, normalized_shape, (weight, bias), eps)


@like(torch_functional.rms_norm)
def rms_norm(
    input: Tensor, normalized_shape: Sequence[int], weight: Tensor | None = None, eps: float | None = None
) -> Lowered | str:
    """RMS norm over the last axes, as torch.nn.functional.rms_norm. By rmsnorm where a weight is given, and eps unless
    the dtype is float32: its default in 16 bits is another in other versions of PyTorch.
    """
    if eps is None:
        if input.dtype != torch.float32:
            return f"no eps is given, and its default in {input.dtype} is PyTorch's to know"
        eps = torch.finfo(torch.float32).eps
    return _normalized("rmsnorm", input, normalized_shape, (weight,), eps)


@like(torch_functional.cross_entropy)
def cross_entropy(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    size_average: bool | None = None,
    ignore_index: int = -100,
    reduce: bool | None = None,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Lowered | str:
    """Cross entropy of scores, as torch.nn.functional.cross_entropy. By cross_entropy for indices of classes without
    class weights, where the classes are innermost in memory. There an index that no class has gives NaN; PyTorch raises
    an error.
    """
    if weight is not None:
        return "cross_entropy has no class weights"
    if size_average is not None or reduce is not None or reduction not in ("none", "mean", "sum"):
        return "its reduction is none of none, mean and sum"
    if reason := unfit("cross_entropy", input):
        return reason
    if not isinstance(target, Tensor) or target.dtype != torch.int64 or target.device != input.device:
        return "cross_entropy takes targets in int64 on the device of the scores"
    if input.ndim == 0 or not 0.0 <= label_smoothing <= 1.0:
        return "these arguments are no scores of classes"
    scores = input if input.ndim <= 2 else input.movedim(1, -1)
    if scores.shape[:-1] != target.shape or not scores.is_contiguous() or scores.shape[-1] == 0:
        return "the classes are not innermost in memory, or the targets are of another shape"

    def reduced(losses: Tensor) -> Tensor:
        if reduction == "none":
            return losses
        total = losses.sum()
        return total if reduction == "sum" else total / (target != ignore_index).sum()

    scalars = {"ignore_index": ignore_index, "label_smoothing": float(label_smoothing)}
    return Lowered("cross_entropy", (scores, target), scalars, reduced)


def _elementwise(operator: str, x: Any, inplace: bool = False, **scalars: Any) -> Lowered | str:
    if inplace:
        return f"{operator} makes its result"
    return unfit(operator, x) or Lowered(operator, (x,), scalars)


@like(torch_functional.gelu, autocast=False)
def gelu(input: Tensor, approximate: str = "none") -> Lowered | str:
    """GELU, exact or by tanh, as torch.nn.functional.gelu. By gelu."""
    if approximate not in ("none", "tanh"):
        return f"{approximate!r} is no form of gelu"
    return _elementwise("gelu", input, approximate=approximate)


@like(torch_functional.silu, autocast=False)
def silu(input: Tensor, inplace: bool = False) -> Lowered | str:
    """SiLU, as torch.nn.functional.silu. By silu where no gradient is wanted."""
    return _elementwise("silu", input, inplace)


@like(torch_functional.relu, autocast=False)
def relu(input: Tensor, inplace: bool = False) -> Lowered | str:
    """ReLU, as torch.nn.functional.relu. By relu where no gradient is wanted."""
    return _elementwise("relu", input, inplace)


def _gated(gate: Tensor, up: Tensor) -> Tensor:
    return torch_functional.silu(gate) * up


@like(_gated, autocast=False)
def swiglu(input: Tensor, up: Tensor) -> Lowered | str:
    """silu(input) * up, the gate of a SwiGLU layer; PyTorch has it in two steps. By silu_mul."""
    if not isinstance(up, Tensor) or input.shape != up.shape:
        return "gate and up are of two shapes"
    return unfit("silu_mul", input, up) or Lowered("silu_mul", (input, up))


def _product(a: Any, b: Any) -> Lowered | str:
    """A product of two matrices, or of rows of any number of axes and one matrix."""
    if reason := unfit("matmul", a, b):
        return reason
    if b.ndim != 2 or a.ndim < 2 or a.shape[-1] != b.shape[0]:
        return "the operands are not rows and a matrix that fits them"
    if a.ndim == 2:
        return Lowered("matmul", (a, b))
    if not a.is_contiguous():
        return "rows in strides cannot be made one axis without a copy"
    shape = (*a.shape[:-1], b.shape[1])
    return Lowered("matmul", (a.view(-1, a.shape[-1]), b), finish=lambda y: y.view(shape)) if a.numel() else "no rows"


@like(torch_functional.linear)
def linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Lowered | str:
    """x @ weight.T + bias, as torch.nn.functional.linear. By linear, or by matmul without a bias, where no gradient is
    wanted.
    """
    if bias is None:
        return _product(input, weight.t() if isinstance(weight, Tensor) and weight.ndim == 2 else weight)
    if reason := unfit("linear", input, weight, bias):
        return reason
    if input.ndim == 0 or weight.ndim != 2 or input.shape[-1] != weight.shape[1] or bias.shape != weight.shape[:1]:
        return "the operands are not rows, a matrix and a bias that fit"
    return Lowered("linear", (input, weight, bias))


@like(torch.matmul)
def matmul(input: Tensor, other: Tensor, *, out: Tensor | None = None) -> Lowered | str:
    """A product, as torch.matmul. By matmul for rows and a matrix, by batched_matmul for batches of one shape; vectors
    and broadcast batches are PyTorch's.
    """
    if out is not None:
        return "matmul makes its result"
    if isinstance(other, Tensor) and input.ndim == other.ndim > 2:
        return _batched(None, input, other, 0.0, 1.0)
    return _product(input, other)


def _batched(c: Any, a: Any, b: Any, beta: float, alpha: float) -> Lowered | str:
    """alpha a b + beta c; without c (beta = 0) memory of its shape is given in its place, which nobody reads."""
    if reason := unfit("batched_matmul", a, b, *(() if c is None else (c,))):
        return reason
    if a.ndim < 3 or b.ndim != a.ndim or a.shape[:-2] != b.shape[:-2] or a.shape[-1] != b.shape[-2]:
        return "the operands are not batches of one shape that fit"
    shape = (*a.shape[:-1], b.shape[-1])
    if c is not None and tuple(c.shape) != shape:
        return "what is added is broadcast"
    given = a.new_empty(shape) if c is None else c
    return Lowered("batched_matmul", (a, b, given), {"alpha": float(alpha), "beta": float(beta)})


@like(torch.bmm)
def bmm(input: Tensor, mat2: Tensor, *, out: Tensor | None = None) -> Lowered | str:
    """A batch of products, as torch.bmm. By batched_matmul where no gradient is wanted."""
    return "bmm makes its result" if out is not None or input.ndim != 3 else _batched(None, input, mat2, 0.0, 1.0)


@like(torch.baddbmm)
def baddbmm(
    input: Tensor, batch1: Tensor, batch2: Tensor, *, beta: float = 1, alpha: float = 1, out: Tensor | None = None
) -> Lowered | str:
    """beta input + alpha batch1 batch2, as torch.baddbmm. By batched_matmul where nothing is broadcast and no gradient
    is wanted.
    """
    if out is not None or not isinstance(batch1, Tensor) or batch1.ndim != 3:
        return "baddbmm makes its result, of three axes"
    return _batched(input, batch1, batch2, beta, alpha)


@like(torch.addmm)
def addmm(
    input: Tensor, mat1: Tensor, mat2: Tensor, *, beta: float = 1, alpha: float = 1, out: Tensor | None = None
) -> Lowered | str:
    """beta input + alpha mat1 mat2, as torch.addmm. By linear where `input` is a bias, both factors are 1 and no
    gradient is wanted.
    """
    if out is not None or beta != 1 or alpha != 1:
        return "linear makes its result, and multiplies nothing by beta and alpha"
    if reason := unfit("linear", input, mat1, mat2):
        return reason
    if mat1.ndim != 2 or mat2.ndim != 2 or mat1.shape[1] != mat2.shape[0] or input.shape != mat2.shape[1:]:
        return "the operands are not rows, a matrix and a bias that fit"
    return Lowered("linear", (mat1, mat2.t(), input))


@like(torch.add, autocast=False)
def add(input: Tensor, other: Tensor | float, *, alpha: float = 1, out: Tensor | None = None) -> Lowered | str:
    """input + other, as torch.add. By vector_add, add_scalar, bias_add or broadcast_add (four axes) where alpha is 1
    and no gradient is wanted; what makes `input` larger is PyTorch's.
    """
    if out is not None or alpha != 1:
        return "the operators make their result, and multiply nothing by alpha"
    if type(other) in (int, float):
        return unfit("add_scalar", input) or Lowered("add_scalar", (input,), {"value": float(other)})
    if not isinstance(other, Tensor):
        return "the other operand is neither a tensor nor a real number"
    if other.shape == input.shape:
        return unfit("vector_add", input, other) or Lowered("vector_add", (input, other))
    if 0 < other.ndim <= input.ndim and input.shape[-other.ndim :] == other.shape:
        return unfit("bias_add", input, other) or Lowered("bias_add", (input, other))
    if input.ndim == other.ndim == 4 and all(b in (1, a) for a, b in zip(input.shape, other.shape, strict=True)):
        return unfit("broadcast_add", input, other) or Lowered("broadcast_add", (input, other))
    return "no operator adds tensors of these shapes"


@like(torch_functional.scaled_dot_product_attention)
def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Lowered | str:
    """As torch.nn.functional.scaled_dot_product_attention, of tensors [batch, heads, length, dim] or without heads. By
    attention where a kernel of ours is taken, and nothing is dropped (PyTorch's own generator says what); with
    gradients where a kernel of ours computes these as well, and the mask wants none.
    """
    if dropout_p:
        return "PyTorch's generator says what is dropped"
    if reason := unfit("attention", query, key, value):
        return reason
    if query.ndim not in (3, 4) or not query.ndim == key.ndim == value.ndim:
        return "attention takes batch, heads, length and dim"
    q, k, v = (tensor if tensor.ndim == 4 else tensor.unsqueeze(1) for tensor in (query, key, value))
    heads, shared = q.shape[1], k.shape[1]
    if not (q.shape[0] == k.shape[0] == v.shape[0] and k.shape[:3] == v.shape[:3] and q.shape[3] == k.shape[3]):
        return "what would be broadcast is PyTorch's"
    if heads != shared and not (enable_gqa and shared and heads % shared == 0):
        return "heads of keys and queries differ"
    if not k.shape[2] or not k.shape[3] or not v.shape[3] or scale == 0:
        return "there is nothing to weigh"
    beside: dict[str, Tensor] = {}
    if attn_mask is not None:
        if is_causal or attn_mask.device != q.device or attn_mask.dtype not in (torch.bool, q.dtype):
            return "such a mask is PyTorch's"
        if attn_mask.requires_grad and torch.is_grad_enabled():
            return "the gradient of a mask is PyTorch's"
        shape = (*q.shape[:3], k.shape[2])
        # without heads its first axis is the batch
        given = attn_mask.unsqueeze(1) if query.ndim == attn_mask.ndim == 3 else attn_mask
        if given.ndim > 4 or any(
            own not in (1, size) for own, size in zip(given.shape[::-1], shape[::-1], strict=False)
        ):
            return "such a mask is PyTorch's"
        beside["mask" if given.dtype == torch.bool else "bias"] = given.expand(shape)
    scalars: dict[str, Any] = {"causal": bool(is_causal), "scale": 0.0 if scale is None else float(scale)}
    if torch.compiler.is_compiling():
        return "in a compiled graph it is PyTorch's"
    if (found := ops.attention.why(q, k, v, **beside, **scalars)).implementation.backend == "torch":
        return f"no kernel of ours is taken here: {found.why}"
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in (query, key, value)):
        out = q.new_empty((*q.shape[:3], v.shape[3]))
        lse = q.new_empty(q.shape[:3], dtype=torch.float32)
        found = ops.attention_backward.why(q, k, v, out, lse, out, lse, **beside, **scalars)
        if found.implementation.backend == "torch":
            return f"its gradients are PyTorch's here: {found.why}"
    return Lowered(
        "attention",
        (q, k, v),
        {**scalars, **beside},
        finish=lambda made: made[0] if query.ndim == 4 else made[0].squeeze(1),
    )


FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    function.__name__: function
    for function in (
        softmax,
        log_softmax,
        layer_norm,
        rms_norm,
        cross_entropy,
        gelu,
        silu,
        relu,
        swiglu,
        linear,
        matmul,
        bmm,
        baddbmm,
        addmm,
        add,
        scaled_dot_product_attention,
    )
}
"""Every function here, by its name."""
