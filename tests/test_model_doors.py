"""Ways that users of transformers know: an attention implementation by name, and one call for a family."""

from __future__ import annotations

import pytest
import torch
from tests.model_families import DECODER

from opforge.core.language.errors import UsageError
from opforge.model import doors

transformers = pytest.importorskip("transformers", reason="needs transformers: pip install 'opforge[models]'")
pytestmark = pytest.mark.usefixtures("front_door")


def made(config, attention):
    torch.manual_seed(0)
    return transformers.AutoModelForCausalLM.from_config(config, attn_implementation=attention).eval()


@pytest.mark.parametrize(
    ("kind", "usual"), [("LlamaConfig", "sdpa"), pytest.param("GptOssConfig", "eager", marks=pytest.mark.campaign)]
)
def test_generation_by_opforges_attention_gives_the_same_tokens(kind, usual):
    """With padding on the left, a cache of keys, and GPT-OSS's sinks, of which PyTorch's function knows nothing."""
    doors.register_attention()
    more = {"num_local_experts": 2, "num_experts_per_tok": 1} if kind == "GptOssConfig" else {}
    config = getattr(transformers, kind)(**{**DECODER, "num_hidden_layers": 1}, **more)
    ids = torch.randint(3, 61, (2, 7))
    mask = torch.ones_like(ids)
    mask[0, :3] = 0
    asked = {"attention_mask": mask, "max_new_tokens": 5, "do_sample": False, "pad_token_id": 0}
    theirs, mine = made(config, usual), made(config, doors.register_attention())
    assert mine.config._attn_implementation == "opforge"
    assert torch.equal(theirs.generate(ids, **asked), mine.generate(ids, **asked))
    apart = theirs(ids, attention_mask=mask).logits - mine(ids, attention_mask=mask).logits
    assert apart[mask.bool()].abs().max() < 1e-5


def test_a_family_is_patched_as_it_is_made_until_that_is_taken_back():
    """One of them, and not the models within it or another family's."""
    config = transformers.LlamaConfig(**{**DECODER, "num_hidden_layers": 1})
    undo = doors.apply_opforge_to_llama()
    try:
        with pytest.raises(UsageError, match="already"):
            doors.apply_opforge_to_llama()
        model = transformers.LlamaForCausalLM(config)
        with torch.device("meta"):
            assert not [
                line for line in transformers.LlamaForCausalLM(config).receipt().lines if line.status == "refused"
            ]
    finally:
        undo()
    assert "rms_norm" in str(model.receipt())
    model.unpatch()
    plain = transformers.LlamaForCausalLM(config)
    assert not hasattr(plain, "unpatch")
    take_off = doors.apply_opforge_to_llama(plain)
    assert plain.receipt().lines
    take_off()
    assert not hasattr(plain, "unpatch")
    with pytest.raises(UsageError, match="Did you mean 'llama'"):
        doors.apply_opforge_to("lama")
    with pytest.raises(AttributeError, match="apply_opforge_to_ of: llama"):
        _ = doors.apply_opforge_to_lama
