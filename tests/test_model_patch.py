"""A model patched in place: a line for every call site, proven by what ran, and undone bit for bit."""

from __future__ import annotations

import copy
import io
import pickle

import pytest
import torch
from tests.model_families import FAMILIES
from torch.nn import functional as F
from torch.nn.functional import silu as renamed

import opforge
from opforge.core.language.errors import UsageError
from opforge.model import patch as patching, watching
from opforge.model.agreement import Disagrees
from opforge.model.receipt import Status

pytestmark = pytest.mark.usefixtures("front_door")


class Norm(torch.nn.Module):
    """As Llama's, under a name that says nothing."""

    def __init__(self, width: int, plus_one: bool = False) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.rand(width))
        self.small, self.plus_one = 1e-5, plus_one

    def forward(self, hidden):
        wide = hidden.float()
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.small)
        return ((self.weight + 1.0 if self.plus_one else self.weight) * wide).to(hidden.dtype)


class NoRMSNorm(Norm):
    """Has the name and the shapes, and computes something else."""

    def forward(self, hidden):
        return self.weight * hidden / hidden.abs().mean(-1, keepdim=True)


def helper(x):
    return F.softmax(x, dim=-1)


class Model(torch.nn.Module):
    """Sites of each kind: in modules, by an alias, in a helper, one that is refused and one that is not reached."""

    def __init__(self, loud: bool = False) -> None:
        super().__init__()
        self.first, self.second, self.odd = Norm(8), Norm(8, plus_one=True), NoRMSNorm(8)
        self.linear, self.head, self.loud = torch.nn.Linear(8, 8), torch.nn.Linear(8, 8), loud
        self.head.weight = self.linear.weight
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        self.calls += 1
        y = self.odd(self.second(self.linear(self.first(x))))
        if self.loud:
            y = torch.nn.functional.log_softmax(y, dim=-1)
        # an axis that is not the innermost is PyTorch's
        return self.head(helper(renamed(y)) + F.softmax(y, dim=0))


def everything(model):
    """What a model consists of: each module's class and what it holds, by identity."""
    return {
        name: (type(module), {key: id(value) for key, value in vars(module).items()})
        for name, module in model.named_modules()
    }


@pytest.fixture
def model():
    torch.manual_seed(0)
    return Model()


X = torch.randn(3, 8, generator=torch.Generator().manual_seed(1))


def by_site(receipt):
    return {(line.path, line.site.function): line for line in receipt.lines if line.site.where != "Model.forward"} | {
        (line.path, f"own {line.site.function}"): line for line in receipt.lines if line.site.where == "Model.forward"
    }


def test_each_call_site_has_its_line_and_what_ran_proves_it(model):
    """A right count of the wrong sites would hide a patch that replaced nothing where it matters."""
    before, expected = everything(model), model(X)
    assert opforge.patch(model, example=X, check=True) is model
    lines = by_site(model.receipt())
    assert {key: (line.status, line.operators) for key, line in lines.items()} == {
        ("first", "rms_norm"): (Status.REPLACED, ("rmsnorm",)),
        ("second", "rms_norm"): (Status.REPLACED, ("rmsnorm",)),
        ("odd", "forward"): (Status.REFUSED, ()),
        ("linear", "linear"): (Status.REPLACED, ("linear",)),
        ("head", "linear"): (Status.REPLACED, ("linear",)),
        ("", "softmax"): (Status.REPLACED, ("softmax",)),
        ("", "own silu"): (Status.REPLACED, ("silu",)),
        ("", "own softmax"): (Status.REFUSED, ()),
        ("", "own log_softmax"): (Status.NEVER_REACHED, ()),
    }
    assert "differs by" in lines["odd", "forward"].why
    assert "two copies" in lines["", "own softmax"].words
    assert lines["", "own silu"].computed["forward", "silu", "torch_eager"] == 1
    torch.testing.assert_close(model(X), expected)
    assert model.unpatch() is model
    model.calls.zero_()
    assert everything(model) == before
    assert torch.equal(model(X), expected)


def test_a_patched_model_is_copied_saved_and_compiled_like_any_other(model):
    opforge.patch(model, example=X)
    expected = model(X)
    through = io.BytesIO()
    torch.save(model, through)
    through.seek(0)
    state = model.state_dict()
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model)), torch.load(through, weights_only=False)):
        assert type(other) is type(model)
        assert other.head.weight is other.linear.weight
        assert torch.equal(other(X), expected)
        assert {line.status for line in other.receipt().lines} == {Status.NOT_RUN}
        other.unpatch()
        assert type(other) is Model
    assert state.keys() == Model().state_dict().keys()
    assert isinstance(model, Model)
    assert isinstance(model.linear, torch.nn.Linear)
    heard = []
    handle = model.first.register_forward_hook(lambda *_: heard.append(1))
    torch.utils.checkpoint.checkpoint(model, X.clone().requires_grad_(), use_reentrant=False).sum().backward()
    assert len(heard) == 2
    handle.remove()


def test_what_cannot_be_patched_stays_as_it_is(model):
    """Nothing half patched: an error leaves classes, buffers and generators alone."""
    before = everything(model)
    with pytest.raises(RuntimeError):
        opforge.patch(model, example=torch.randn(3, 5))
    with pytest.raises(UsageError, match=r"Nothing of this Sequential .* Looked for: calls of .*softmax"):
        opforge.patch(torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Dropout()))
    with pytest.raises(UsageError, match="No call was computed by an operator"):
        opforge.patch(model, example=X, only=["log_softmax"])
    with pytest.raises(UsageError, match="check=True needs"):
        opforge.patch(model, check=True)
    with pytest.raises(UsageError, match=r"No function of .* named 'sofmax'"):
        opforge.patch(model, only="sofmax")
    with pytest.raises(UsageError, match="is patched"):
        opforge.unpatch(model)
    assert everything(model) == before
    opforge.patch(model)
    inside = everything(model)
    with pytest.raises(UsageError, match="patched already"):
        opforge.patch(torch.nn.ModuleList([torch.nn.Linear(2, 2), model]))
    assert everything(model) == inside


def test_a_wrong_operator_is_found_by_the_check(model, monkeypatch):
    """One per cent too large, in one activation of the model."""
    real, before = watching.Watch.call, everything(model)

    def planted(self, function, site, given, named):
        result = real(self, function, site, given, named)
        return result * 1.01 if site.function == "silu" else result

    monkeypatch.setattr(watching.Watch, "call", planted)
    with pytest.raises(Disagrees, match="disagrees with what it was"):
        opforge.patch(model, example=X, check=True)
    assert everything(model) == before


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_what_stands_over_a_model_is_seen_through_or_said(model):
    """torch.compile before the patch, a forward that is set on a module, a compiled TorchScript module."""
    expected = model(X)
    compiled = torch.compile(model, backend="eager")
    opforge.patch(compiled, example=X)
    assert {line.path for line in compiled.receipt().replaced} >= {"_orig_mod.first", "_orig_mod.linear", "_orig_mod"}
    torch.testing.assert_close(compiled(X), expected)
    opforge.unpatch(compiled)
    assert type(model.first) is Norm
    model.odd = torch.jit.script(torch.nn.Linear(8, 8))
    theirs = model.linear.forward
    model.linear.forward = lambda x: theirs(x)
    opforge.patch(model, example=X)
    why = {line.path: line.why for line in model.receipt().refused}
    assert "set on the module itself" in why["linear"]
    assert "before torch.jit.script" in why["odd"]


def test_llama_is_patched_by_what_its_modules_compute():
    """Its norm and its feed-forward layer call no function of PyTorch's that would be found by name."""
    transformers = pytest.importorskip("transformers", reason="needs transformers: pip install 'opforge[models]'")
    config = transformers.LlamaConfig(
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        vocab_size=31,
        max_position_embeddings=32,
        tie_word_embeddings=True,
    )
    torch.manual_seed(0)
    llama = transformers.LlamaForCausalLM(config).eval()
    ids = torch.randint(0, 31, (2, 5))
    tokens = llama.generate(ids, max_new_tokens=4, do_sample=False, pad_token_id=0)
    before = everything(llama)
    opforge.patch(llama, example={"input_ids": ids, "labels": ids}, check=True)
    lines = llama.receipt().lines
    replaced = {(line.path, line.site.function) for line in lines if line.status is Status.REPLACED}
    layer = "model.layers.0"
    norms = {(f"{layer}.{name}", "rms_norm") for name in ("input_layernorm", "post_attention_layernorm")}
    assert replaced >= norms | {("", "cross_entropy"), (f"{layer}.mlp", "swiglu"), ("lm_head", "linear")}
    assert {line.site.function for line in lines if line.status is Status.NEVER_REACHED} == {
        "matmul",
        "softmax",
        "silu",
    }
    (attention,) = [line for line in lines if line.site.function == "scaled_dot_product_attention"]
    assert attention.status is not Status.NEVER_REACHED
    assert attention.path == f"{layer}.self_attn"
    assert torch.equal(llama.generate(ids, max_new_tokens=4, do_sample=False, pad_token_id=0), tokens)
    llama.unpatch()
    assert everything(llama) == before


def test_a_patch_is_planned_whole_before_it_begins(model, monkeypatch):
    """The last class that cannot be given takes the first ones back."""
    plan, before = patching.plan_of(model, patching.names_of(None)), everything(model)
    impossible = patching.Plan(classes=(*plan.classes, (model.linear, dict)), stay=())
    monkeypatch.setattr(patching, "plan_of", lambda *_: impossible)
    with pytest.raises(TypeError):
        opforge.patch(model)
    assert everything(model) == before


@pytest.mark.campaign
@pytest.mark.parametrize("family", FAMILIES)
def test_each_family_is_patched_trained_one_step_and_restored(family):
    """Twelve ways to write a model: modules of all kinds, tables of attention functions, losses made in a forward."""
    pytest.importorskip("transformers", reason="needs transformers: pip install 'opforge[models]'")
    torch.manual_seed(0)
    model, example = FAMILIES[family]()
    before, state = everything(model), {name: tensor.clone() for name, tensor in model.state_dict().items()}
    opforge.patch(model, example=example, check=True)
    receipt = model.receipt()
    assert receipt.ran == ("forward", "training step")
    assert len(receipt.replaced) >= 9
    assert any(line.computed for line in receipt.lines if line.site.function == "cross_entropy")
    assert all(line.words for line in receipt.refused)
    model.unpatch()
    assert everything(model) == before
    assert all(torch.equal(state[name], tensor) for name, tensor in model.state_dict().items())
