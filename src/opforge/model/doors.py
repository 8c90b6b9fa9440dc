"""The doors that users of transformers have already: an attention implementation by name, and one call for a family.

from opforge.model import doors

doors.register_attention()
model = AutoModelForCausalLM.from_config(config, attn_implementation="opforge")

undo = doors.apply_opforge_to_llama()           # every LlamaForCausalLM that is made from here on is patched
doors.apply_opforge_to_llama(model)             # this one is
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from opforge import ops
from opforge.core.language.errors import UsageError, unknown
from opforge.model.classes import names_of, rewriter
from opforge.model.patch import patch
from opforge.model.source import transformers
from opforge.model.undoing import patched_modules

NAME = "opforge"
FAMILIES = {
    "llama": "llama",
    "qwen3": "qwen3",
    "mixtral": "mixtral",
    "gemma3": "gemma3",
    "gpt_oss": "gpt_oss",
    "deepseek_v3": "deepseek_v3",
    "mamba2": "mamba2",
    "bert": "bert",
    "vit": "vit",
    "resnet": "resnet",
    "convnext": "convnext",
    "whisper": "whisper",
}
"""The families that have a function `apply_opforge_to_FAMILY`, and their folders in transformers.models."""


def register_attention() -> str:
    """Tell transformers of opforge's attention, under the name that this returns: `attn_implementation="opforge"`.

    What transformers computes by scaled_dot_product_attention goes to `opforge.ops.functional` of that name, with its
    masks; sinks and a cap of scores, which that function does not have, go to `opforge.ops.attention`.
    Raises EnvironmentLacks where transformers is not installed.
    """
    library = transformers()
    from transformers.integrations.sdpa_attention import sdpa_attention_forward
    from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

    library.AttentionInterface.register(NAME, _attention(rewriter(names_of(None)).function(sdpa_attention_forward)))
    AttentionMaskInterface.register(NAME, sdpa_mask)
    return NAME


def _attention(rewritten: Any) -> Callable[..., tuple[Tensor, None]]:
    by_sdpa = rewritten.function

    def attention_forward(
        module: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        dropout: float = 0.0,
        scaling: float | None = None,
        is_causal: bool | None = None,
        **more: Any,
    ) -> tuple[Tensor, None]:
        """(out [batch, queries, heads, dim], None) for q, k, v [batch, heads, length, dim]."""
        sinks, softcap = more.get("s_aux"), more.get("softcap")
        if sinks is None and softcap is None:
            returned: tuple[Tensor, None] = by_sdpa(
                module, query, key, value, attention_mask, dropout, scaling, is_causal, **more
            )
            return returned
        if dropout or more.get("position_bias") is not None:
            raise UsageError(
                'attn_implementation="opforge" has no dropout and no position bias beside sinks or a cap of scores. '
                'Take attn_implementation="eager" for this model.'
            )
        wanted = is_causal if is_causal is not None else getattr(module, "is_causal", True)
        causal = query.shape[2] > 1 and attention_mask is None and wanted
        beside: dict[str, Any] = {} if sinks is None else {"sinks": sinks.float()}
        if attention_mask is not None:
            shape = (*query.shape[:3], key.shape[2])
            beside["mask" if attention_mask.dtype == torch.bool else "bias"] = attention_mask.expand(shape)
        out, _ = ops.attention(
            query, key, value, causal=causal, scale=float(scaling or 0.0), softcap=float(softcap or 0.0), **beside
        )
        return out.transpose(1, 2).contiguous(), None

    return attention_forward


def apply_opforge_to(family: str, model: torch.nn.Module | None = None, **options: Any) -> Callable[[], None]:
    """Patch `model`, or every model of a family that is made from here on, as soon as it is made; returns what takes
    that back. Models that were patched stay so until their own `unpatch`.

    family   one of FAMILIES
    options  as opforge.patch takes them
    Raises UsageError for a family that is not known, or one that is applied already.
    """
    if model is not None:
        patch(model, **options)
        return functools.partial(_unpatch, model)
    library = transformers()
    if family not in FAMILIES:
        raise unknown("family", family, FAMILIES)
    folder = FAMILIES[family]
    module = importlib.import_module(f"{library.__name__}.models.{folder}.modeling_{folder}")
    kinds = [
        kind
        for kind in vars(module).values()
        if isinstance(kind, type)
        and issubclass(kind, library.PreTrainedModel)
        and kind.__module__ == module.__name__
        and "__init__" in vars(kind)
    ]
    if any(hasattr(vars(kind)["__init__"], "opforge_original") for kind in kinds):
        raise UsageError(f"Models of {family} are patched as they are made already. Call what the first call returned.")
    for kind in kinds:
        kind.__init__ = _patching(kind, vars(kind)["__init__"], options)  # type: ignore[misc]

    def undo() -> None:
        for kind in kinds:
            kind.__init__ = vars(kind)["__init__"].opforge_original  # type: ignore[misc]

    return undo


def _patching(kind: type, original: Callable[..., None], options: dict[str, Any]) -> Callable[..., None]:
    """An __init__ that patches what is made; of a model in a model the outer one alone."""

    @functools.wraps(original)
    def __init__(self: Any, *given: Any, **named: Any) -> None:
        outermost = not _making
        _making.append(self)
        try:
            original(self, *given, **named)
        finally:
            _making.pop()
        # a subclass of the user's goes on making itself
        if outermost and type(self) is kind:
            patch(self, **options)

    __init__.opforge_original = original  # type: ignore[attr-defined]
    return __init__


_making: list[Any] = []


def _unpatch(model: torch.nn.Module) -> None:
    if patched_modules(model):
        model.unpatch()  # type: ignore[operator]


def __getattr__(name: str) -> Callable[..., Any]:
    family = name.removeprefix("apply_opforge_to_")
    if family == name or family not in FAMILIES:
        raise AttributeError(f"opforge.model.doors has no {name!r}. It has apply_opforge_to_ of: {', '.join(FAMILIES)}")
    return functools.partial(apply_opforge_to, family)
