"""Training steps of a ResNet-18 on opforge's convolutions, beside the same steps on PyTorch's: the losses agree.

    python examples/resnet_training.py

Every convolution and each of its gradients takes the fastest implementation that has a Pass on this machine, and
PyTorch where none has one yet. To have some: opforge qualify conv2d conv2d_input_grad conv2d_weight_grad
"""

from __future__ import annotations

import copy

import torch
from torch import nn
from torch.nn import functional as F

from opforge import nn as opforge_nn
from opforge.ops import functional

STEPS, RATE = 3, 0.05


class Block(nn.Module):
    """Two 3 x 3 convolutions beside a shortcut (He et al., arXiv:1512.03385, Fig. 5, left).

    conv   the class of the convolutions: torch.nn.Conv2d, or opforge.nn.Conv2d in its place
    """

    def __init__(self, conv: type[nn.Conv2d], before: int, after: int, stride: int) -> None:
        super().__init__()
        self.first = conv(before, after, 3, stride, padding=1, bias=False)
        self.second = conv(after, after, 3, padding="same", bias=False)
        self.norms = nn.ModuleList(nn.BatchNorm2d(after) for _ in range(2))
        self.shortcut = conv(before, after, 1, stride, bias=False) if stride > 1 or before != after else nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.relu(self.norms[0](self.first(x)))
        return F.relu(self.norms[1](self.second(y)) + self.shortcut(x))


class ResNet18(nn.Module):
    """ResNet-18: a 7 x 7 stem, four stages of two blocks, an average, a classifier.

    width   channels of the first stage; 64 in the paper
    """

    def __init__(self, conv: type[nn.Conv2d], width: int = 64, classes: int = 10) -> None:
        super().__init__()
        self.stem, self.norm = conv(3, width, 7, 2, padding=3, bias=False), nn.BatchNorm2d(width)
        widths = [width, width, 2 * width, 4 * width, 8 * width]
        self.blocks = nn.Sequential(
            *(
                Block(conv, widths[stage] if place == 0 else widths[stage + 1], widths[stage + 1], stride)
                for stage in range(4)
                for place, stride in ((0, 1 if stage == 0 else 2), (1, 1))
            )
        )
        self.classify = nn.Linear(8 * width, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.max_pool2d(F.relu(self.norm(self.stem(x))), 3, 2, padding=1)
        return self.classify(self.blocks(x).mean(dim=(2, 3)))


def losses(model: nn.Module, images: torch.Tensor, labels: torch.Tensor, steps: int = STEPS) -> list[float]:
    """The loss before each of so many steps of gradient descent."""
    optimizer, found = torch.optim.SGD(model.parameters(), lr=RATE), []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    return found


def twins(width: int) -> tuple[nn.Module, nn.Module]:
    """A ResNet-18 on opforge's convolutions and one on PyTorch's, with the same parameters."""
    theirs, mine = ResNet18(nn.Conv2d, width), ResNet18(opforge_nn.Conv2d, width)
    mine.load_state_dict(copy.deepcopy(theirs.state_dict()))
    return mine, theirs


def main() -> None:
    torch.manual_seed(0)
    images, labels = torch.randn(4, 3, 64, 64), torch.randint(10, (4,))
    mine, theirs = twins(width=16)
    print(functional.conv2d.why(torch.randn(4, 16, 16, 16), mine.blocks[0].first.weight, padding=1))
    for step, (one, other) in enumerate(
        zip(losses(mine, images, labels), losses(theirs, images, labels), strict=True), 1
    ):
        print(f"step {step}: loss {one:.6f} on opforge, {other:.6f} on PyTorch")
        if not abs(one - other) <= 1e-3 * abs(other):
            raise SystemExit("the losses differ by more than rounding explains")


if __name__ == "__main__":
    main()
