"""The gradient of gelu: dx = dy * (Phi(x) + x * phi(x)), or that of its tanh approximation."""

import math

from opforge.core.operator import Case, Law, Operator, Scalar, TensorSpec, Tolerance, Workload
from opforge.definitions.cases import ELEMENT_LAYOUTS, ELEMENTS

ROOT = math.sqrt(2 / math.pi)


def slope(x, approximate):
    if approximate == "tanh":
        t = (ROOT * (x + 0.044715 * x**3)).tanh()
        return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * ROOT * (1 + 3 * 0.044715 * x * x)
    return 0.5 * (1 + (x / math.sqrt(2)).erf()) + x * (-0.5 * x * x).exp() / math.sqrt(2 * math.pi)


def reference(x, dy, *, approximate):
    return dy * slope(x, approximate)


def magnitude(inputs, outputs, scalars):
    x, dy = inputs["x"], inputs["dy"]
    # Phi and x * phi are added up, and cancel for negative x; the argument of exp carries an error of eps * x^2
    near = x.clamp(-12, 12)
    size = 1 + near.abs() * (1 + near * near) ** 2 * (-0.5 * near * near).exp()
    if scalars["approximate"] == "tanh":
        # 1 - tanh^2 cancels until it is 0, which it is from 6 on, and is multiplied by x u'
        near = x.clamp(-6, 6).abs()
        size = size + near * ROOT * (1 + 3 * 0.044715 * near * near)
    return {"dx": dy.abs() * size}


def bounded(inputs, outputs, scalars):
    # the slope runs from -0.129 to 1.129 in both forms; the rest is bfloat16's rounding
    dx, dy = outputs["dx"], inputs["dy"]
    wrong = (dx.abs() > dy.abs() * 1.14 + 1e-7).sum().item()
    return None if wrong == 0 else f"{wrong} results are larger than 1.129 |dy|"


operator = Operator(
    name="gelu_backward",
    about="gradient of gelu with respect to its input",
    source="Hendrycks and Gimpel, Gaussian Error Linear Units, 2016, differentiated",
    inputs=(TensorSpec(name="x", shape="*shape"), TensorSpec(name="dy", shape="*shape")),
    outputs=(TensorSpec(name="dx", shape="*shape"),),
    scalars=(
        Scalar(name="approximate", default="none", choices=("none", "tanh"), about="the form of gelu, as in PyTorch"),
    ),
    reference=reference,
    # an erf, an exp or a tanh counted as one
    flops="10 * prod(shape)",
    tolerance=Tolerance(
        magnitude=magnitude,
        about="erf, exp and tanh of a few float32 ulp, sums that cancel for negative x, one rounding",
    ),
    laws=(Law(name="bounded", about="the slope of gelu stays below 1.13", holds=bounded),),
    cases=(
        *ELEMENTS,
        Case(name="prime", axes={"shape": (70001,)}, why="several blocks and a ragged end"),
        Case(name="prime_tanh", axes={"shape": (70001,)}, scalars={"approximate": "tanh"}, why="the other form"),
        # finite values only: PyTorch's own slope at infinity is 0 times infinity
        Case(name="large", axes={"shape": (1025,)}, distribution="large", why="the slope is 0 or 1"),
        Case(
            name="large_tanh",
            axes={"shape": (1025,)},
            distribution="large",
            scalars={"approximate": "tanh"},
            why="x cubed reaches 1e8 and exp overflows",
        ),
        Case(name="tiny", axes={"shape": (513,)}, distribution="tiny", why="near 0 the slope is 1/2"),
        Case(
            name="skewed_tanh",
            axes={"shape": (1025,)},
            distribution="skewed",
            scalars={"approximate": "tanh"},
            why="positive values only, a few of them large",
        ),
        *ELEMENT_LAYOUTS,
    ),
    workloads=(
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
        Workload(
            name="mlp_gpt2_xl",
            axes={"shape": (8, 1024, 6400)},
            source="GPT-2 XL: MLP, 8 sequences of 1024",
            scalars={"approximate": "tanh"},
        ),
    ),
    implementations=("cuda_vectors", "triton_blocks", "cpp_simd", "torch_eager"),
)
