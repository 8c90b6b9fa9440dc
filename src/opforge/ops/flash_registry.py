"""opforge as one of PyTorch's own flash attentions, so that `F.scaled_dot_product_attention` runs it.

    import torch
    from opforge.ops import flash_registry

    flash_registry.register()                                          # PyTorch knows the name "opforge"
    torch.nn.attention.activate_flash_attention_impl("opforge")        # from here on it is asked first
    torch.nn.attention.restore_flash_attention_impl()                  # and no longer

What PyTorch sends to its flash attention (its own choice: dtypes, head dimensions, no mask on a GPU) goes to
`opforge.ops.attention`, forward and backward, where a kernel of opforge's is taken. Every other call goes to the kernel
that PyTorch had before: with dropout, whose generator is PyTorch's, and where dispatch finds PyTorch the best. Needs
torch.nn.attention.register_flash_attention_impl (2.13 has it, 2.11 does not).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from opforge import ops
from opforge.core.language.errors import UsageError

NAME = "opforge"
FORWARD, BACKWARD = "_scaled_dot_product_flash_attention", "_scaled_dot_product_flash_attention_backward"
FORWARD_CPU, BACKWARD_CPU = f"{FORWARD}_for_cpu", f"{FORWARD}_for_cpu_backward"
KEYS = {FORWARD_CPU: "CPU", BACKWARD_CPU: "CPU", FORWARD: "CUDA", BACKWARD: "CUDA"}
"""PyTorch's operators, and the dispatch key under which each has a kernel."""

# made now, and not inside of PyTorch's dispatcher
for _name in ("attention", "attention_backward"):
    getattr(ops, _name)


class Active:
    """What stands in PyTorch's dispatcher until `remove`."""

    def __init__(self) -> None:
        self.counts = dict.fromkeys(KEYS, 0)
        """How many calls of each of PyTorch's operators a kernel of opforge's has computed."""
        self._before: dict[str, Any] = {}
        for name, key in KEYS.items():
            operator = getattr(torch.ops.aten, name).default
            if torch._C._dispatch_has_kernel_for_dispatch_key(operator.name(), key):
                self._before[name] = torch.library.get_kernel(operator, key)
        self._library: Any = torch.library.Library("aten", "IMPL")
        made: dict[str, Callable[..., Any]] = {
            FORWARD: self._forward,
            BACKWARD: self._backward,
            FORWARD_CPU: self._forward_cpu,
            BACKWARD_CPU: self._backward_cpu,
        }
        with warnings.catch_warnings():
            # that a kernel of PyTorch's is overridden is what its registry is for
            warnings.filterwarnings("ignore", message="(?s).*[Oo]verrid", category=UserWarning)
            for name in self._before:
                self._library.impl(name, made[name], KEYS[name], with_keyset=True, allow_override=True)

    def remove(self) -> None:
        """Give PyTorch its kernels back."""
        if self._library is not None:
            self._library._destroy()
        self._library = None

    def _old(self, name: str, keys: Any, *tensors: Any, **named: Any) -> Any:
        return self._before[name].call_boxed(keys, *tensors, **named)

    def _computed(self, name: str, function: Any, tensors: tuple[Tensor, ...], named: Mapping[str, Any]) -> Any:
        """What `function` gives by a kernel of opforge's; None where PyTorch's is the choice."""
        if not all(tensor.numel() for tensor in tensors):
            return None
        with torch.no_grad():
            if function.why(*tensors, **named).implementation.backend in ("torch", "compile", "library"):
                return None
            returned = function(*tensors, **named)
        self.counts[name] += 1
        return returned

    def _forward_cpu(
        self,
        keys: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        *,
        attn_mask: Tensor | None = None,
        scale: float | None = None,
    ) -> tuple[Tensor, Tensor]:
        named, beside = _scalars(is_causal, scale), _beside(query, key, attn_mask)
        found = None
        if not dropout_p and scale != 0 and beside is not None:
            found = self._computed(FORWARD_CPU, ops.attention, (query, key, value), {**named, **beside})
        if found is None:
            old = self._old(
                FORWARD_CPU, keys, query, key, value, dropout_p, is_causal, attn_mask=attn_mask, scale=scale
            )
            return old[0], old[1]
        # PyTorch has 0 for the log-sum-exp of a query that sees nothing
        return found[0], found[1].masked_fill(found[1].isneginf(), 0.0)

    def _backward_cpu(
        self,
        keys: Any,
        grad_out: Tensor,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        out: Tensor,
        logsumexp: Tensor,
        dropout_p: float,
        is_causal: bool,
        *,
        attn_mask: Tensor | None = None,
        scale: float | None = None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        beside = _beside(query, key, attn_mask)
        given, found = (query, key, value, out, logsumexp, grad_out, torch.zeros_like(logsumexp)), None
        if not dropout_p and scale != 0 and beside is not None:
            named = {**_scalars(is_causal, scale), **beside}
            found = self._computed(BACKWARD_CPU, ops.attention_backward, given, named)
        if found is None:
            old = self._old(
                BACKWARD_CPU, keys, grad_out, query, key, value, out, logsumexp, dropout_p, is_causal,
                attn_mask=attn_mask, scale=scale,
            )  # fmt: skip
            return old[0], old[1], old[2]
        return found[0], found[1], found[2]

    def _forward(
        self,
        keys: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        return_debug_mask: bool = False,
        *,
        scale: float | None = None,
    ) -> Any:
        found = None
        if not dropout_p and not return_debug_mask and scale != 0:
            found = self._computed(FORWARD, ops.attention, (query, key, value), _scalars(is_causal, scale))
        if found is None:
            return self._old(FORWARD, keys, query, key, value, dropout_p, is_causal, return_debug_mask, scale=scale)
        state = torch.zeros(2, dtype=torch.uint64, device=query.device)
        unused = torch.zeros((), dtype=torch.uint64, device=query.device)
        return (*found, None, None, query.shape[2], key.shape[2], state, unused, query.new_empty(0))

    def _backward(
        self,
        keys: Any,
        grad_out: Tensor,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        out: Tensor,
        logsumexp: Tensor,
        cum_seq_q: Tensor | None,
        cum_seq_k: Tensor | None,
        max_q: int,
        max_k: int,
        dropout_p: float,
        is_causal: bool,
        philox_seed: Tensor,
        philox_offset: Tensor,
        *,
        scale: float | None = None,
    ) -> Any:
        found = None
        if not dropout_p and cum_seq_q is None and scale != 0:
            given = (query, key, value, out, logsumexp, grad_out, torch.zeros_like(logsumexp))
            found = self._computed(BACKWARD, ops.attention_backward, given, _scalars(is_causal, scale))
        if found is not None:
            return found
        return self._old(
            BACKWARD, keys, grad_out, query, key, value, out, logsumexp, cum_seq_q, cum_seq_k, max_q, max_k, dropout_p,
            is_causal, philox_seed, philox_offset, scale=scale,
        )  # fmt: skip


def _scalars(causal: bool, scale: float | None) -> dict[str, Any]:
    return {"causal": bool(causal), "scale": 0.0 if scale is None else float(scale)}


def _beside(query: Tensor, key: Tensor, mask: Tensor | None) -> dict[str, Tensor] | None:
    """The mask as attention takes it; None where it does not take such a one."""
    if mask is None:
        return {}
    if mask.dtype not in (torch.bool, query.dtype) or mask.ndim > 4:
        return None
    return {"mask" if mask.dtype == torch.bool else "bias": mask.expand(*query.shape[:3], key.shape[2])}


def register() -> str:
    """Tell PyTorch of opforge, under the name that it returns; nothing is activated. Raises UsageError where this
    PyTorch has no registry.
    """
    add = getattr(torch.nn.attention, "register_flash_attention_impl", None)
    if add is None or not hasattr(torch.library, "get_kernel"):
        raise UsageError(
            f"PyTorch {torch.__version__} has no registry of flash attentions. Call "
            "opforge.ops.functional.scaled_dot_product_attention instead, or install PyTorch 2.13."
        )
    add(NAME, register_fn=Active)
    return NAME
