"""How far a patched Llama is from its aims on a GPU: a layer's training step, and decoding with a CUDA graph.

    python scripts/model_aims.py                 # on an H200: Llama-3-8B's shapes, bfloat16
    python scripts/model_aims.py --small         # the same steps at a size that a CPU can run

Aims: the training step (batch 4 × 4096) at least 1.15 times as fast as torch.compile's max-autotune and 1.05 times as
fast as Liger, with at most their memory; decoding of 32 layers in a CUDA graph at least 1.1 times as fast as
torch.compile's reduce-overhead.
"""

from __future__ import annotations

import argparse
import os
import random
import time
from collections.abc import Callable
from statistics import median

import torch

os.environ.setdefault("HF_HUB_OFFLINE", "1")

LARGE = {
    "vocab_size": 128256,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-5,
}
SMALL = LARGE | {
    "vocab_size": 512,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
}


def llama(layers: int, sizes: dict[str, int], device: str, dtype: torch.dtype) -> torch.nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    with torch.device(device):
        return LlamaForCausalLM(LlamaConfig(num_hidden_layers=layers, **sizes)).to(dtype).eval()


def training(sizes: dict[str, int], device: str, batch: int, length: int, budget_s: float) -> None:
    """One layer with embedding, head and loss: forward and backward."""
    from opforge.model.compare import compare_model

    model = llama(1, sizes, device, torch.bfloat16)
    ids = torch.randint(sizes["vocab_size"], (batch, length), device=device)
    variants = ["eager", "opforge"]
    if device == "cuda":
        variants = ["max-autotune", "eager", "compile", "liger", "opforge", "opforge+compile"]
    example = {"input_ids": ids, "labels": ids, "use_cache": False}
    compared = compare_model(model, example, variants=variants, budget_s=budget_s, tell=print)
    print(compared.receipt.text()[0])
    for one in compared.measured:
        against = f"{one.against.speedup:.3f}x {one.against.outcome}" if one.against else "baseline"
        held = f"{one.peak_bytes / 2**30:.2f} GiB" if one.peak_bytes is not None else "-"
        took = f"{one.median_s * 1e3:9.3f} ms"
        print(f"{one.phase:14} {one.name:16} {took}  {against:18} {held:>10}  error {one.error:.1e}")
    for name, reason in compared.left_out.items():
        print(f"{name} is left out: {reason}")


def decoder(model: torch.nn.Module, length: int, steps: int, device: str) -> Callable[[], None]:
    """One step of decoding after `length` tokens, with a cache of fixed size that has room for `steps` of them."""
    from transformers import StaticCache

    cache = StaticCache(config=model.config, max_cache_len=length + steps)
    ids = torch.randint(100, (1, length), device=device)
    one = ids[:, :1].clone()
    with torch.no_grad():
        model(ids, cache=cache)

    def step() -> None:
        with torch.no_grad():
            model(one, cache=cache)

    return step


def graphed(step: Callable[[], None], device: str) -> Callable[[], None]:
    """The step in a CUDA graph; as it is on a CPU."""
    if device != "cuda":
        return step
    beside = torch.cuda.Stream()
    beside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(beside):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(beside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph.replay


def decoding(sizes: dict[str, int], device: str, layers: int, length: int, rounds: int) -> None:
    """Steps of decoding in turns: compiled by reduce-overhead, and patched in a CUDA graph."""
    import opforge
    from opforge.model.compare import twin

    model = llama(layers, sizes, device, torch.bfloat16)
    patched = opforge.patch(twin(model))
    calls = {"eager in a graph": graphed(decoder(model, length, rounds + 20, device), device)}
    calls["patched in a graph"] = graphed(decoder(patched, length, rounds + 20, device), device)
    if device == "cuda":
        # a twin of its own: what is compiled stands beside the code of forward
        compiled = torch.compile(twin(model), mode="reduce-overhead", fullgraph=True)
        calls["reduce-overhead"] = decoder(compiled, length, rounds + 20, device)
    for call in calls.values():
        for _ in range(5):
            call()
    samples: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name in random.sample(list(calls), len(calls)):
            begun = time.perf_counter()
            calls[name]()
            if device == "cuda":
                torch.cuda.synchronize()
            samples[name].append(time.perf_counter() - begun)
    for name, taken in samples.items():
        print(f"decode, {layers} layers, {length} tokens: {name:20} {median(taken) * 1e3:.3f} ms a token")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--budget", type=float, default=30.0, help="seconds of sampling for each phase")
    asked = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cpu" and not asked.small:
        raise SystemExit("model_aims: Llama-3-8B's shapes need a GPU. Run the same steps smaller: --small")
    sizes = SMALL if asked.small else LARGE
    training(sizes, device, *((2, 32) if asked.small else (4, 4096)), asked.budget)
    decoding(sizes, device, *((2, 16, 10) if asked.small else (32, 2048, 200)))


if __name__ == "__main__":
    main()
