"""A small Llama of transformers from end to end: analysed, patched, proven, compared, and undone bit for bit.

    python examples/patched_llama.py

Nothing is downloaded: the weights are random. Where no kernel is verified yet, operators are computed by PyTorch, and
the receipt says so. To have some: opforge qualify rmsnorm silu_mul matmul cross_entropy
"""

from __future__ import annotations

import os

import torch

os.environ.setdefault("HF_HUB_OFFLINE", "1")

FIELDS = {
    "vocab_size": 512,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
}


def analysed() -> str:
    """What the model is made of, and what a perfect replacement could gain."""
    from opforge.machine import detect
    from opforge.model.analyse import Asked, analyse
    from opforge.registry import load

    fields = [f"{name}={value}" for name, value in FIELDS.items()]
    asked = Asked(
        model="LlamaConfig",
        fields=fields,
        batch=2,
        length=32,
        dtype="float32",
        training=False,
        device="cpu",
        spec=detect("cpu"),
        measure=True,
        budget_s=0.5,
    )
    found = analyse(asked, load())
    gain = found.replaceable
    return (
        f"graph: {len(found.graph.nodes)} nodes; opforge has operators for {gain.share:.0%} of the time, at most "
        f"{gain.limit:.2f} times as fast without it"
    )


def main() -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    import opforge
    from opforge.model.compare import compare_model

    print(analysed())
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(**FIELDS)).eval()
    ids = torch.randint(FIELDS["vocab_size"], (2, 32))
    example = {"input_ids": ids, "labels": ids, "use_cache": False}
    asked = {"max_new_tokens": 12, "do_sample": False, "pad_token_id": 0, "attention_mask": torch.ones_like(ids)}
    tokens, logits = model.generate(ids, **asked), model(ids).logits
    classes = [type(module) for module in model.modules()]
    held = [set(vars(module)) for module in model.modules()]

    # forward and training step of the patched model are held against what it was
    opforge.patch(model, example=example, check=True)
    print(model.receipt())
    print(f"generation gives the same tokens: {torch.equal(model.generate(ids, **asked), tokens)}")

    model.unpatch()
    same = [type(module) for module in model.modules()] == classes and [
        set(vars(one)) for one in model.modules()
    ] == held
    print(f"undone, bit for bit: {same and torch.equal(model(ids).logits, logits)}")

    print("end to end, in turns (opforge model compare LlamaConfig … has torch.compile beside them):")
    for one in compare_model(model, example, variants=("eager", "opforge"), budget_s=3).measured:
        words = f"{one.against.outcome} {one.against.speedup:.2f}×" if one.against else "baseline"
        print(f"  {one.phase}, {one.name}: {one.median_s * 1e3:.2f} ms, {words}, error {one.error:.1e}")


if __name__ == "__main__":
    main()
