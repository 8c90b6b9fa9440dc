"""Layers of published models that operators are timed at: a forward and its gradient, and operators that stand in one
place of a model, share them.
"""

from __future__ import annotations

from opforge.core.definition.operator import Workload

LAYER_NORMS = (
    Workload(
        name="bert_base",
        axes={"lead": (4, 512), "cols": 768},
        source="BERT-base: hidden size 768, 4 sequences of 512",
        scale="laptop",
    ),
    Workload(
        name="gpt2_xl_prompt",
        axes={"lead": (1024,), "cols": 1600},
        source="GPT-2 XL: d_model 1600, one context of 1024",
        scale="laptop",
    ),
    Workload(
        name="bert_large",
        axes={"lead": (64, 512), "cols": 1024},
        source="BERT-large: hidden size 1024, 64 sequences of 512",
    ),
    Workload(
        name="gpt2_xl", axes={"lead": (16, 1024), "cols": 1600}, source="GPT-2 XL: d_model 1600, 16 contexts of 1024"
    ),
    Workload(
        name="gpt3_175b",
        axes={"lead": (2, 2048), "cols": 12288},
        source="GPT-3 175B: d_model 12288, 2 contexts of 2048",
    ),
)
"""Layer norms of BERT and the GPTs."""

RMS_NORMS = (
    Workload(
        name="llama32_1b_prompt",
        axes={"lead": (1, 1024), "cols": 2048},
        source="Llama 3.2 1B: hidden size 2048, a prompt of 1024",
        scale="laptop",
    ),
    Workload(
        name="qwen25_05b_prompt",
        axes={"lead": (2, 1024), "cols": 896},
        source="Qwen2.5 0.5B: hidden size 896, 2 prompts of 1024",
        scale="laptop",
    ),
    Workload(
        name="llama3_8b",
        axes={"lead": (2, 8192), "cols": 4096},
        source="Llama 3 8B: hidden size 4096, 2 contexts of 8192",
    ),
    Workload(
        name="llama3_70b",
        axes={"lead": (8192,), "cols": 8192},
        source="Llama 3 70B: hidden size 8192, one context of 8192",
    ),
)
"""RMS norms of Llama 3 and Qwen2.5, over the hidden size."""

SOFTMAXES = (
    Workload(
        name="attention_gpt2",
        axes={"lead": (12, 256), "cols": 256},
        source="GPT-2 small: 12 heads, a window of 256",
        scale="laptop",
    ),
    Workload(
        name="vocabulary_gpt2",
        axes={"lead": (16,), "cols": 50257},
        source="GPT-2: the language-model head, 16 tokens",
        scale="laptop",
    ),
    Workload(
        name="attention_llama3_8b",
        axes={"lead": (32, 2048), "cols": 2048},
        source="Llama 3 8B: 32 heads, a context of 2048",
    ),
    Workload(
        name="vocabulary_llama3",
        axes={"lead": (512,), "cols": 128256},
        source="Llama 3: the language-model head, 512 tokens",
    ),
    Workload(
        name="attention_bert_large",
        axes={"lead": (32, 16, 512), "cols": 512},
        source="BERT-large: 16 heads, 32 sequences of 512",
    ),
)
"""Attention, and the heads of language models."""

ROW_SWEEP = tuple(
    Workload(
        name=f"rows_{cols // 1024}k",
        axes={"lead": ((1 << 26) // cols,), "cols": cols},
        source=f"2^26 elements in rows of {cols}: where row kernels change their plan",
    )
    for cols in (1024, 4096, 16384, 32768, 65536, 131072, 262144)
)
"""Rows from 1K to 256K columns, as many elements in each."""

SWIGLUS = (
    Workload(
        name="mlp_qwen2.5_0.5b", axes={"shape": (512, 4864)}, source="Qwen2.5 0.5B: MLP, 512 tokens", scale="laptop"
    ),
    Workload(
        name="mlp_llama3.2_1b", axes={"shape": (512, 8192)}, source="Llama 3.2 1B: MLP, 512 tokens", scale="laptop"
    ),
    Workload(name="mlp_llama3_8b", axes={"shape": (4096, 14336)}, source="Llama 3 8B: MLP, 4096 tokens"),
    Workload(name="mlp_llama3_70b", axes={"shape": (4096, 28672)}, source="Llama 3 70B: MLP, 4096 tokens"),
)
"""The feed-forward layers of Llama 3 and Qwen2.5."""

GELUS = (
    Workload(
        name="mlp_bert_base",
        axes={"shape": (8, 128, 3072)},
        source="BERT base: feed-forward layer, 8 sequences of 128",
        scale="laptop",
    ),
    Workload(
        name="mlp_gpt2",
        axes={"shape": (1024, 3072)},
        source="GPT-2 small: MLP, 1024 tokens",
        scale="laptop",
        scalars={"approximate": "tanh"},
    ),
    Workload(
        name="mlp_bert_large",
        axes={"shape": (32, 512, 4096)},
        source="BERT large: feed-forward layer, 32 sequences of 512",
    ),
    Workload(name="mlp_vit_l16", axes={"shape": (64, 197, 4096)}, source="ViT-L/16: MLP, 64 images"),
    Workload(
        name="mlp_gpt2_xl",
        axes={"shape": (8, 1024, 6400)},
        source="GPT-2 XL: MLP, 8 sequences of 1024",
        scalars={"approximate": "tanh"},
    ),
)
"""Feed-forward layers of BERT and GPT-2."""

FEATURE_MAPS = (
    Workload(
        name="conv2_resnet50_laptop",
        axes={"batch": 8, "channels": 256, "spatial": (56, 56)},
        source="ResNet-50: conv2_x, batch 8",
        scale="laptop",
    ),
    Workload(
        name="conv4_resnet50_laptop",
        axes={"batch": 8, "channels": 1024, "spatial": (14, 14)},
        source="ResNet-50: conv4_x, batch 8",
        scale="laptop",
    ),
    Workload(
        name="conv2_resnet50",
        axes={"batch": 256, "channels": 256, "spatial": (56, 56)},
        source="ResNet-50: conv2_x, batch 256",
    ),
    Workload(
        name="conv4_resnet50",
        axes={"batch": 256, "channels": 1024, "spatial": (14, 14)},
        source="ResNet-50: conv4_x, batch 256",
    ),
    Workload(
        name="images_imagenet",
        axes={"batch": 256, "channels": 3, "spatial": (224, 224)},
        source="ImageNet: a batch of 256 images",
    ),
)
"""ResNet-50's feature maps and ImageNet's pictures."""

TILES = (
    Workload(
        name="weights_gpt2_laptop",
        axes={"lead": (), "down": 24, "height": 32, "across": 96, "width": 32},
        source="GPT-2 small: a weight of the MLP in tiles of 32 x 32",
        scale="laptop",
    ),
    Workload(
        name="activations_gpt2_laptop",
        axes={"lead": (), "down": 256, "height": 8, "across": 96, "width": 8},
        source="GPT-2 small: 2048 tokens in tiles of 8 x 8",
        scale="laptop",
    ),
    Workload(
        name="weights_llama3_8b",
        axes={"lead": (), "down": 128, "height": 32, "across": 448, "width": 32},
        source="Llama 3 8B: a weight of the MLP in tiles of 32 x 32",
    ),
    Workload(
        name="square_64",
        axes={"lead": (), "down": 128, "height": 64, "across": 128, "width": 64},
        source="Llama 3 70B: a square weight in tiles of 64 x 64",
    ),
)
"""Weights and activations in tiles."""


def vocabularies(cols: str = "cols") -> tuple[Workload, ...]:
    """The heads of language models, and ImageNet; `cols` is the name of the axis of the classes."""
    return (
        Workload(
            name="vocabulary_bert",
            axes={"lead": (64,), cols: 30522},
            source="BERT: the masked-language-model head, 64 masked tokens",
            scale="laptop",
        ),
        Workload(
            name="vocabulary_gpt2",
            axes={"lead": (16,), cols: 50257},
            source="GPT-2: the language-model head, 16 tokens",
            scale="laptop",
        ),
        Workload(
            name="vocabulary_llama2",
            axes={"lead": (2048,), cols: 32000},
            source="Llama 2: the language-model head, 2048 tokens",
        ),
        Workload(
            name="vocabulary_llama3",
            axes={"lead": (512,), cols: 128256},
            source="Llama 3: the language-model head, 512 tokens",
        ),
        Workload(
            name="classes_imagenet",
            axes={"lead": (65536,), cols: 1000},
            source="ImageNet: 1000 classes, 65536 pictures",
        ),
    )
