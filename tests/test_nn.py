"""opforge.nn in the place of torch.nn: parameters, results, gradients, and what is done to modules."""

from __future__ import annotations

import copy
import io
import pickle

import pytest
import torch

from opforge import ops

PAIRS = {
    "Linear": ((6, 5), {}, lambda: torch.randn(2, 3, 6)),
    "Linear without bias": ((6, 5), {"bias": False}, lambda: torch.randn(4, 6)),
    "RMSNorm": ((6,), {"eps": 1e-5}, lambda: torch.randn(2, 3, 6)),
    "RMSNorm, its own eps": (((3, 6),), {}, lambda: torch.randn(2, 3, 6)),
    "LayerNorm": ((6,), {}, lambda: torch.randn(2, 3, 6)),
    "LayerNorm of two axes": (((3, 6),), {"eps": 1e-6}, lambda: torch.randn(2, 3, 6)),
    "LayerNorm without bias": ((6,), {"bias": False}, lambda: torch.randn(2, 6)),
    "LayerNorm without parameters": ((6,), {"elementwise_affine": False}, lambda: torch.randn(2, 6)),
    "GroupNorm": ((2, 6), {"eps": 1e-6}, lambda: torch.randn(2, 6, 5, 3)),
    "GroupNorm without parameters": ((3, 6), {"affine": False}, lambda: torch.randn(2, 6, 5)),
    "Softmax": ((), {"dim": -1}, lambda: torch.randn(2, 6)),
    "Softmax of rows": ((), {"dim": 0}, lambda: torch.randn(3, 6)),
    "LogSoftmax": ((), {"dim": -1}, lambda: torch.randn(2, 6)),
    "GELU": ((), {"approximate": "tanh"}, lambda: torch.randn(2, 6)),
    "SiLU": ((), {}, lambda: torch.randn(2, 6)),
    "ReLU": ((), {}, lambda: torch.randn(2, 6)),
    "Conv1d": ((4, 6, 3), {"stride": 2, "padding": 1}, lambda: torch.randn(2, 4, 9)),
    "Conv2d": ((4, 6, 3), {"padding": "same", "groups": 2}, lambda: torch.randn(2, 4, 5, 7)),
    "Conv2d, its image continued": (
        (3, 5, 3),
        {"padding": 1, "padding_mode": "circular"},
        lambda: torch.randn(1, 3, 4, 4),
    ),
}


@pytest.fixture
def nn(front_door):
    from opforge import nn
    from opforge.ops import functional

    for name in functional.OPERATORS:
        getattr(ops, name)
    torch.manual_seed(0)
    return nn


def pair(nn, name):
    """Ours with the parameters of PyTorch's, that one, and an input."""
    arguments, named, make = PAIRS[name]
    kind = name.split()[0].rstrip(",")
    theirs = getattr(torch.nn, kind)(*arguments, **named)
    for parameter in theirs.parameters():
        torch.nn.init.normal_(parameter)
    mine = getattr(nn, kind)(*arguments, **named)
    assert mine.load_state_dict(theirs.state_dict()).missing_keys == []
    return mine, theirs, make()


@pytest.mark.parametrize("name", PAIRS)
def test_a_module_is_pytorchs_with_its_parameters(nn, name):
    """Results with and without gradients, gradients, what it says of itself, and copies."""
    mine, theirs, x = pair(nn, name)
    assert repr(mine) == repr(theirs) and isinstance(mine, type(theirs)) and type(mine) is not type(theirs)
    with torch.no_grad():
        torch.testing.assert_close(mine(x), theirs(x))
    a, b = (x.clone().requires_grad_() for _ in range(2))
    one, other = mine(a), theirs(b)
    incoming = torch.randn_like(one)
    gradients = torch.autograd.grad(one, (a, *mine.parameters()), incoming)
    torch.testing.assert_close(gradients, torch.autograd.grad(other, (b, *theirs.parameters()), incoming))
    for twin in (copy.deepcopy(mine), pickle.loads(pickle.dumps(mine))):
        assert torch.equal(twin(x), mine(x))
    assert all(parameter.dtype == torch.bfloat16 for parameter in mine.to(torch.bfloat16).parameters())


@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_the_loss_is_pytorchs(nn, reduction, smoothing):
    """Ignored rows too, and the mean over those that are left."""
    x, target = torch.randn(4, 7), torch.tensor([1, -100, 6, 0])
    made = {"reduction": reduction, "label_smoothing": smoothing}
    mine, theirs = nn.CrossEntropyLoss(**made), torch.nn.CrossEntropyLoss(**made)
    a, b = (x.clone().requires_grad_() for _ in range(2))
    one, other = mine(a, target), theirs(b, target)
    torch.testing.assert_close(one, other)
    for loss, leaf in ((one, a), (other, b)):
        loss.sum().backward()
        assert leaf.grad is not None
    torch.testing.assert_close(a.grad, b.grad)
    weighted = torch.rand(7)
    torch.testing.assert_close(nn.CrossEntropyLoss(weighted)(x, target), torch.nn.CrossEntropyLoss(weighted)(x, target))


class Block(torch.nn.Module):
    """A layer of a language model."""

    def __init__(self, nn):
        super().__init__()
        self.norm, self.mlp = nn.RMSNorm(8, eps=1e-5), nn.SwiGLU(8, 16)
        self.last, self.head, self.loss = nn.LayerNorm(8), nn.Linear(8, 11), nn.CrossEntropyLoss()

    def forward(self, x, target):
        return self.loss(self.head(self.last(x + self.mlp(self.norm(x)))), target)


def test_a_gated_layer_is_what_checkpoints_hold(nn):
    mlp = nn.SwiGLU(8, 16, dtype=torch.float64)
    assert sorted(mlp.state_dict()) == ["down_proj.weight", "gate_proj.weight", "up_proj.weight"]
    before = mlp.gate_proj.weight.clone()
    mlp.reset_parameters()
    assert not torch.equal(before, mlp.gate_proj.weight)
    x = torch.randn(2, 3, 8, dtype=torch.float64)
    gated = torch.nn.functional.silu(mlp.gate_proj(x)) * mlp.up_proj(x)
    torch.testing.assert_close(mlp(x), mlp.down_proj(gated))
    wide = nn.SwiGLU(8, 16, bias=True)
    y = torch.randn(2, 8)
    torch.testing.assert_close(wide(y), wide.down_proj(torch.nn.functional.silu(wide.gate_proj(y)) * wide.up_proj(y)))


@pytest.mark.slow
def test_a_block_is_compiled_in_one_graph_and_exported(nn):
    """Forward and gradients under torch.compile, and a program that holds the operators."""
    block, x, target = Block(nn), torch.randn(5, 8), torch.tensor([1, 2, 3, 10, 0])
    eager = block(x, target)
    wanted = torch.autograd.grad(eager, tuple(block.parameters()))
    compiled = torch.compile(block, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x, target), eager)
    found = torch.autograd.grad(compiled(x, target), tuple(block.parameters()))
    torch.testing.assert_close(found, wanted)
    with torch.no_grad():
        program = torch.export.export(block, (x, target))
    held = {str(node.target) for node in program.graph.nodes}
    assert {"opforge.rmsnorm.default", "opforge.layernorm.default", "opforge.cross_entropy.default"} <= held
    file = io.BytesIO()
    torch.export.save(program, file)
    file.seek(0)
    with torch.no_grad():
        torch.testing.assert_close(torch.export.load(file).module()(x, target), eager.detach())


def test_data_parallel_on_this_machine_is_the_module(nn):
    """Without a GPU it calls the module itself; replicas on GPUs are threads, which test_front_door.py has."""
    block, x, target = Block(nn), torch.randn(5, 8), torch.tensor([1, 2, 3, 10, 0])
    if not torch.cuda.is_available():
        assert torch.equal(torch.nn.DataParallel(block)(x, target), block(x, target))
