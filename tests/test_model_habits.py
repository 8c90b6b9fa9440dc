"""What people do with a model goes on with a patched one: compile, autocast, LoRA, safetensors, sharding, hooks."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tests.model_families import FAMILIES

import opforge
from opforge.core.language.errors import UsageError

EXAMPLE = Path(__file__).resolve().parent.parent / "examples" / "patched_llama.py"
pytestmark = [pytest.mark.usefixtures("front_door"), pytest.mark.campaign]


@pytest.fixture
def llama():
    pytest.importorskip("transformers", reason="needs transformers: pip install 'opforge[models]'")
    torch.manual_seed(0)
    model, example = FAMILIES["llama"]()
    return model.eval(), example


def test_a_patched_model_compiles_whole_and_for_any_batch(llama):
    """No graph break, and one compilation for all batches that follow the second."""
    model, example = llama
    opforge.patch(model, example=example)
    compiles = []

    def backend(graph, _):
        compiles.append(sum("opforge" in str(node.target) for node in graph.graph.nodes))
        return graph.forward

    compiled = torch.compile(model, backend=backend, fullgraph=True, dynamic=True)
    for batch in (2, 3, 5):
        ids = torch.randint(3, 61, (batch, 7))
        with torch.no_grad():
            assert torch.equal(compiled(input_ids=ids, use_cache=False).logits, model(ids, use_cache=False).logits)
    assert len(compiles) == 1
    assert compiles[0] >= 10
    model.unpatch()
    with torch.no_grad():
        # what was compiled of the patched classes is not called for the plain ones
        assert torch.equal(compiled(input_ids=ids, use_cache=False).logits, model(ids, use_cache=False).logits)
    assert len(compiles) == 2
    assert compiles[1] == 0


def test_autocast_and_checkpointing_give_what_they_gave(llama):
    model, example = llama
    model.activation_checkpointing_enable()
    model.train()

    def step():
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = model(**example).loss
        return loss, torch.autograd.grad(loss, list(model.parameters()))

    before = step()
    opforge.patch(model, example=example)
    loss, gradients = step()
    assert loss.dtype == before[0].dtype
    torch.testing.assert_close(loss, before[0], rtol=2e-2, atol=0)
    for mine, theirs in zip(gradients, before[1], strict=True):
        assert (mine - theirs).abs().max() <= 0.05 * theirs.abs().max()
    model.unpatch()
    assert torch.equal(step()[0], before[0])


def test_safetensors_and_save_pretrained_know_nothing_of_a_patch(llama, tmp_path):
    import transformers
    from safetensors.torch import load_model, save_model

    model, example = llama
    opforge.patch(model, example=example)
    save_model(model, str(tmp_path / "model.safetensors"))
    model.save_pretrained(tmp_path / "saved")
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "saved").eval()
    assert type(again) is transformers.LlamaForCausalLM
    other, _ = FAMILIES["llama"]()
    load_model(other, str(tmp_path / "model.safetensors"))
    for loaded in (again, other.eval()):
        torch.testing.assert_close(loaded(**example).logits, model(**example).logits)


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_lora_layers_wrap_patched_ones_and_come_off_again(llama):
    peft = pytest.importorskip("peft", reason="needs peft: pip install peft")
    model, example = llama
    before = {name: type(module) for name, module in model.named_modules()}
    opforge.patch(model, example=example)
    plain = model(**example).logits
    config = peft.LoraConfig(r=2, target_modules=["q_proj", "down_proj"], init_lora_weights=False)
    wrapped = peft.get_peft_model(model, config)
    changed = wrapped(**example).logits
    assert not torch.allclose(changed, plain)
    opforge.unpatch(wrapped)
    torch.testing.assert_close(wrapped(**example).logits, changed)
    wrapped.unload()
    assert {name: type(module) for name, module in model.named_modules()} == before


def test_a_class_that_changed_since_is_said_before_anything_is_undone():
    """parametrize gives a module another class, as fully_shard does."""
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.GELU())
    opforge.patch(model, example=torch.randn(2, 4))
    patched = [type(module) for module in model.modules()]
    torch.nn.utils.parametrizations.weight_norm(model[0])
    with pytest.raises(UsageError, match="another class since"):
        model.unpatch()
    assert type(model[1]) is patched[2]
    assert model(torch.randn(2, 4)).shape == (2, 4)


def test_sharded_layers_stay_patched(llama, tmp_path):
    """FSDP2 on one process: its class stands over the patched one."""
    distributed = pytest.importorskip("torch.distributed")
    fsdp = pytest.importorskip("torch.distributed.fsdp")
    model, example = llama
    opforge.patch(model, example=example)
    expected = model(**example).loss.detach()
    distributed.init_process_group("gloo", init_method=f"file://{tmp_path / 'rank'}", rank=0, world_size=1)
    try:
        mesh = distributed.device_mesh.init_device_mesh("cpu", (1,))
        for layer in model.model.layers:
            fsdp.fully_shard(layer, mesh=mesh)
        fsdp.fully_shard(model, mesh=mesh)
        loss = model(**example).loss
        loss.backward()
        torch.testing.assert_close(loss.detach(), expected)
        with pytest.raises(UsageError, match="another class since"):
            model.unpatch()
    finally:
        distributed.destroy_process_group()


def test_the_example_does_what_it_says():
    """Same tokens, undone bit for bit, and an end-to-end comparison, as examples/patched_llama.py prints them."""
    pytest.importorskip("transformers", reason="needs transformers: pip install 'opforge[models]'")
    said = subprocess.run([sys.executable, str(EXAMPLE)], capture_output=True, text=True, timeout=600)
    assert said.returncode == 0, said.stderr[-2000:]
    for words in ("agree with the unpatched model", "same tokens: True", "bit for bit: True", "training step, opforge"):
        assert words in said.stdout
