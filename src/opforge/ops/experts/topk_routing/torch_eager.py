"""A stable sort in float32 whose first k places are the experts: torch.topk may take any of equal ones."""

from torch import Tensor

from opforge.device.torch.routing import weights_of


def run(logits: Tensor, k: int, score: str, normalise: bool) -> tuple[Tensor, Tensor]:
    wide = logits.float()
    chosen = wide.sort(dim=-1, descending=True, stable=True).indices[..., :k].contiguous()
    return weights_of(wide, chosen, score, normalise), chosen
