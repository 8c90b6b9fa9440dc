"""Twelve families of models, a layer or two of each, with random weights and inputs: nothing is downloaded.

Every size is given by name: what a configuration of transformers leaves out is a large model's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

VOCABULARY, LENGTH = 61, 7
DECODER = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 64,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}


def _tokens(seed: int = 0) -> torch.Tensor:
    return torch.randint(3, VOCABULARY, (2, LENGTH), generator=torch.Generator().manual_seed(seed))


def _images(size: int = 32) -> torch.Tensor:
    return torch.randn(2, 3, size, size, generator=torch.Generator().manual_seed(0))


def _language(config: Any) -> tuple[torch.nn.Module, dict[str, Any]]:
    from transformers import AutoModelForCausalLM

    ids = _tokens()
    return AutoModelForCausalLM.from_config(config), {"input_ids": ids, "labels": ids}


def _seen(config: Any) -> tuple[torch.nn.Module, dict[str, Any]]:
    from transformers import AutoModelForImageClassification

    config.num_labels = 5
    return AutoModelForImageClassification.from_config(config), {
        "pixel_values": _images(),
        "labels": torch.tensor([1, 3]),
    }


def llama() -> tuple[torch.nn.Module, dict[str, Any]]:
    from transformers import LlamaConfig

    return _language(LlamaConfig(**DECODER))


def qwen3() -> tuple[torch.nn.Module, dict[str, Any]]:
    from transformers import Qwen3Config

    return _language(Qwen3Config(**DECODER))


def mixtral() -> tuple[torch.nn.Module, dict[str, Any]]:
    from transformers import MixtralConfig

    return _language(MixtralConfig(**DECODER, num_local_experts=4, num_experts_per_tok=2, sliding_window=None))


def gemma3() -> tuple[torch.nn.Module, dict[str, Any]]:
    from transformers import Gemma3TextConfig

    kinds = ["sliding_attention", "full_attention"]
    return _language(Gemma3TextConfig(**DECODER, sliding_window=4, layer_types=kinds, query_pre_attn_scalar=8))


def gpt_oss() -> tuple[torch.nn.Module, dict[str, Any]]:
    from transformers import GptOssConfig

    kinds = ["sliding_attention", "full_attention"]
    return _language(
        GptOssConfig(**DECODER, num_local_experts=4, num_experts_per_tok=2, sliding_window=4, layer_types=kinds)
    )


def deepseek_v3() -> tuple[torch.nn.Module, dict[str, Any]]:
    from transformers import DeepseekV3Config

    sizes = {name: size for name, size in DECODER.items() if name not in ("head_dim", "num_key_value_heads")}
    return _language(
        DeepseekV3Config(
            **sizes,
            num_key_value_heads=4,
            moe_intermediate_size=16,
            n_routed_experts=4,
            n_shared_experts=1,
            n_group=2,
            topk_group=1,
            num_experts_per_tok=2,
            first_k_dense_replace=1,
            q_lora_rank=16,
            kv_lora_rank=16,
            qk_rope_head_dim=8,
            qk_nope_head_dim=8,
            v_head_dim=8,
        )
    )


def mamba2() -> tuple[torch.nn.Module, dict[str, Any]]:
    from transformers import Mamba2Config

    return _language(
        Mamba2Config(
            vocab_size=VOCABULARY,
            hidden_size=32,
            num_hidden_layers=2,
            state_size=8,
            num_heads=8,
            head_dim=8,
            n_groups=1,
            expand=2,
            conv_kernel=4,
            chunk_size=4,
            bos_token_id=1,
            eos_token_id=2,
            pad_token_id=0,
        )
    )


def bert() -> tuple[torch.nn.Module, dict[str, Any]]:
    from transformers import AutoModelForMaskedLM, BertConfig

    ids = _tokens()
    config = BertConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=48,
        max_position_embeddings=16,
        type_vocab_size=2,
    )
    return AutoModelForMaskedLM.from_config(config), {"input_ids": ids, "labels": ids}


def vit() -> tuple[torch.nn.Module, dict[str, Any]]:
    from transformers import ViTConfig

    return _seen(
        ViTConfig(
            hidden_size=32,
            num_hidden_layers=2,
            num_attention_heads=4,
            intermediate_size=48,
            image_size=32,
            patch_size=8,
            num_channels=3,
        )
    )


def resnet() -> tuple[torch.nn.Module, dict[str, Any]]:
    from transformers import ResNetConfig

    return _seen(
        ResNetConfig(
            num_channels=3,
            embedding_size=8,
            hidden_sizes=[8, 16],
            depths=[1, 2],
            layer_type="basic",
            hidden_act="relu",
        )
    )


def convnext() -> tuple[torch.nn.Module, dict[str, Any]]:
    from transformers import ConvNextConfig

    return _seen(ConvNextConfig(num_channels=3, patch_size=4, num_stages=2, hidden_sizes=[8, 16], depths=[1, 2]))


def whisper() -> tuple[torch.nn.Module, dict[str, Any]]:
    from transformers import WhisperConfig, WhisperForConditionalGeneration

    config = WhisperConfig(
        vocab_size=VOCABULARY,
        num_mel_bins=8,
        d_model=32,
        encoder_layers=1,
        decoder_layers=1,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=48,
        decoder_ffn_dim=48,
        max_source_positions=10,
        max_target_positions=16,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=0,
        decoder_start_token_id=1,
    )
    heard = torch.randn(2, 8, 20, generator=torch.Generator().manual_seed(0))
    return WhisperForConditionalGeneration(config), {"input_features": heard, "labels": _tokens()}


FAMILIES: dict[str, Callable[[], tuple[torch.nn.Module, dict[str, Any]]]] = {
    made.__name__: made
    for made in (llama, qwen3, mixtral, gemma3, gpt_oss, deepseek_v3, mamba2, bert, vit, resnet, convnext, whisper)
}
"""Each gives a model and what it is called with, labels among it."""
