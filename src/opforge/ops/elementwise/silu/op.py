"""Sigmoid linear unit: y = x / (1 + exp(-x)), also called swish."""

from opforge.core.definition.likeness import Like
from opforge.core.operator import Case, Law, Operator, TensorSpec, Tolerance, Workload
from opforge.definitions.cases import ELEMENT_LAYOUTS, ELEMENTS
from opforge.definitions.torch_calls import elementwise


def reference(x):
    return x / (1 + (-x).exp())


def magnitude(inputs, outputs, scalars):
    x = inputs["x"]
    # an argument of exp carries an error of eps * |x|, of which silu feels the share 1 - sigmoid;
    # below x = -87.3 the sigmoid is smaller than the least normal number, and may be 0: then 1e-36 is lost
    return {"y": outputs["y"].abs() * (1 + x.abs() * (1 - x.sigmoid())) + 2e-30}


def bounded_below(inputs, outputs, scalars):
    # the minimum is -0.27846 at x = -1.278; bfloat16 may round it by half a unit of 2^-9
    least = outputs["y"].min().item()
    return None if least >= -0.2796 else f"the least result is {least:.4g}; the function never falls below -0.2785"


def lower(input, inplace=False):
    """As torch.nn.functional.silu, where the result is not written over the input."""
    return elementwise(input, inplace)


operator = Operator(
    name="silu",
    about="sigmoid linear unit (swish): x times its sigmoid",
    source="Elfwing, Uchibe and Doya, Sigmoid-Weighted Linear Units for Neural Network Function Approximation in "
    "Reinforcement Learning, 2017",
    inputs=(TensorSpec(name="x", shape="*shape"),),
    outputs=(TensorSpec(name="y", shape="*shape"),),
    reference=reference,
    # an exp counted as one
    flops="4 * prod(shape)",
    tolerance=Tolerance(magnitude=magnitude, about="exp to a few float32 ulp, one rounding"),
    laws=(Law(name="bounded_below", about="the function's minimum is -0.278", holds=bounded_below),),
    cases=(
        *ELEMENTS,
        Case(name="prime", axes={"shape": (70001,)}, why="several blocks and a ragged end"),
        Case(name="large", axes={"shape": (4099,)}, distribution="large", why="exp overflows: the result is x or 0"),
        Case(name="tiny", axes={"shape": (513,)}, distribution="tiny", why="near 0 the result is x / 2"),
        Case(name="special", axes={"shape": (263,)}, distribution="special", why="NaN, infinities, signed zeros"),
        *ELEMENT_LAYOUTS,
    ),
    workloads=(
        Workload(
            name="mbconv_efficientnet_b0_laptop",
            axes={"shape": (8, 96, 112, 112)},
            source="EfficientNet-B0: first expansion of stage 3, batch 8",
            scale="laptop",
        ),
        Workload(
            name="mlp_qwen2.5_0.5b",
            axes={"shape": (512, 4864)},
            source="Qwen2.5 0.5B: gate of the MLP, 512 tokens",
            scale="laptop",
        ),
        Workload(
            name="mbconv_efficientnet_b0",
            axes={"shape": (256, 96, 112, 112)},
            source="EfficientNet-B0: first expansion of stage 3, batch 256",
        ),
        Workload(
            name="unet_sd15",
            axes={"shape": (16, 320, 64, 64)},
            source="Stable Diffusion 1.5: residual block of the U-Net at 64 x 64, batch 16",
        ),
        Workload(
            name="mlp_llama3_8b", axes={"shape": (4096, 14336)}, source="Llama 3 8B: gate of the MLP, 4096 tokens"
        ),
    ),
    implementations=("cuda_vectors", "triton_blocks", "tilelang_blocks", "cpp_simd", "torch_eager"),
    like=(Like(function="torch.nn.functional.silu", lower=lower, autocast=False),),
)
