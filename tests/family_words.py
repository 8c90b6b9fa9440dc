"""Twelve families of models as words of a command line: a configuration of transformers and its fields, at sizes that a
test can run. Whatever is left out is a large model's, or differs between versions of transformers.
"""

import json

_DECODER = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_ENCODER = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
}

FAMILIES = {
    "llama": ("LlamaConfig", _DECODER),
    "qwen3": ("Qwen3Config", _DECODER),
    "mixtral": ("MixtralConfig", {**_DECODER, "num_local_experts": 4, "num_experts_per_tok": 2}),
    "gemma3": (
        "Gemma3TextConfig",
        {**_DECODER, "sliding_window": 8, "layer_types": ["sliding_attention", "full_attention"]},
    ),
    "gpt_oss": (
        "GptOssConfig",
        {
            **_DECODER,
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "sliding_window": 8,
            "layer_types": ["sliding_attention", "full_attention"],
        },
    ),
    "deepseek_v3": (
        "DeepseekV3Config",
        {
            **{name: value for name, value in _DECODER.items() if name != "head_dim"},
            "num_key_value_heads": 4,
            "moe_intermediate_size": 16,
            "n_routed_experts": 4,
            "num_experts_per_tok": 2,
            "n_group": 2,
            "topk_group": 1,
            "n_shared_experts": 1,
            "first_k_dense_replace": 1,
            "q_lora_rank": 16,
            "kv_lora_rank": 16,
            "qk_rope_head_dim": 8,
            "qk_nope_head_dim": 8,
            "v_head_dim": 8,
        },
    ),
    "mamba2": (
        "Mamba2Config",
        {
            "vocab_size": 96,
            "hidden_size": 32,
            "state_size": 8,
            "num_hidden_layers": 2,
            "num_heads": 8,
            "head_dim": 8,
            "n_groups": 1,
            "expand": 2,
            "conv_kernel": 4,
            "chunk_size": 8,
            "pad_token_id": 0,
            "bos_token_id": 1,
            "eos_token_id": 2,
        },
    ),
    "bert": ("BertConfig", {**_ENCODER, "vocab_size": 96, "max_position_embeddings": 64, "type_vocab_size": 2}),
    "vit": ("ViTConfig", {**_ENCODER, "image_size": 16, "patch_size": 8, "num_channels": 3}),
    "resnet": (
        "ResNetConfig",
        {
            "num_channels": 3,
            "embedding_size": 8,
            "hidden_sizes": [16, 32],
            "depths": [1, 2],
            "layer_type": "bottleneck",
            "hidden_act": "relu",
        },
    ),
    "convnext": (
        "ConvNextConfig",
        {
            "num_channels": 3,
            "patch_size": 4,
            "image_size": 32,
            "hidden_sizes": [8, 16, 16, 16],
            "depths": [1, 1, 1, 1],
            "hidden_act": "gelu",
        },
    ),
    "whisper": (
        "WhisperConfig",
        {
            "vocab_size": 96,
            "d_model": 32,
            "encoder_layers": 1,
            "decoder_layers": 1,
            "encoder_attention_heads": 4,
            "decoder_attention_heads": 4,
            "encoder_ffn_dim": 64,
            "decoder_ffn_dim": 64,
            "max_source_positions": 16,
            "max_target_positions": 16,
            "num_mel_bins": 8,
            "pad_token_id": 0,
            "bos_token_id": 1,
            "eos_token_id": 2,
            "decoder_start_token_id": 1,
        },
    ),
}
"""Of each family the configuration's class and its fields."""


def words_of(family):
    """A family as `opforge model analyse` takes it: the class, then name=value of each field."""
    name, fields = FAMILIES[family]
    return [name, *(f"{field}={json.dumps(value)}" for field, value in fields.items())]
