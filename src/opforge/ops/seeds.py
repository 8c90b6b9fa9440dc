"""Seeds for operators that drop, drawn from PyTorch's generator, eagerly and inside torch.compile.

    from opforge import ops
    from opforge.ops.seeds import draw_seed

    out, lse = ops.attention(q, k, v, dropout=0.1, seed=draw_seed())

Which weights an operator drops is a function of its seed alone. What torch.manual_seed, a checkpoint of the generator's
state and torch.utils.checkpoint bring back is the sequence of seeds, and with it every mask. A compiled graph draws the
same ones in the same order as the eager call.
"""

from __future__ import annotations

import torch
from torch import Tensor

_drawn = torch.zeros((), dtype=torch.int64)
"""How many seeds were drawn. A compiler sees each draw overwrite it, and so neither drops, joins nor reorders them."""


def _draw(drawn: Tensor) -> Tensor:
    drawn.add_(1)
    return torch.randint(0, 2**62, (), dtype=torch.int64)


_draw_seed = torch.library.custom_op(
    "opforge::draw_seed",
    _draw,
    mutates_args=("drawn",),
    schema="(Tensor(a!) drawn) -> Tensor",
    tags=(torch.Tag.nondeterministic_seeded,),
)
_draw_seed.register_fake(lambda drawn: torch.empty_like(drawn))
# an operator whose result is a number may overwrite nothing, and Tensor.item breaks a graph: so there are two
_seed_of = torch.library.custom_op("opforge::seed_of", int, mutates_args=(), schema="(Tensor drawn) -> SymInt")
_seed_of.register_fake(lambda drawn: torch.library.get_ctx().new_dynamic_size())


def draw_seed() -> int:
    """A seed of 62 bits from PyTorch's generator for the CPU (torch.manual_seed), for `seed=` of an operator on any
    device.

    Inside torch.compile it is a number that only the run knows, and the graph stays whole. A CUDA graph keeps the seed
    that it was captured with.
    """
    if torch.compiler.is_compiling():
        return _seed_of(_draw_seed(_drawn))  # type: ignore[no-any-return]
    return int(_draw(_drawn))
