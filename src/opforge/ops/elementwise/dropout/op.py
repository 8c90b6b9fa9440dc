"""dropout with a counter-based generator: y = x / (1 - p) where an element is kept, 0 where it is dropped, with
probability p.
"""

from opforge.core.operator import Case, Constraint, Law, Operator, Scalar, TensorSpec, Tolerance, Workload
from opforge.core.philox import threshold, words


def reference(x, p, seed):
    index = x.new_ones(x.numel()).long().cumsum(dim=0) - 1
    dropped = (words(index, seed) < threshold(p)).view(x.shape)
    # a dropped element is 0 whatever it was, NaN included
    # with p = 1 all are dropped, and nothing is left to divide
    return (x / (1 - p or 1.0)).masked_fill(dropped, 0)


def drops_the_share(inputs, outputs, scalars):
    x, y, p = inputs["x"], outputs["y"], scalars["p"]
    asked = x.numel()
    # where x / (1 - p) is no more than half the least float16, 0 is the right result of a kept element
    dropped = ((y == 0) & (x.abs() > 2.0**-24)).sum().item()
    certain = (x.abs() > 2.0**-24).sum().item()
    # six standard deviations of a binomial distribution
    excess = abs(dropped - p * certain) - 6 * (certain * p * (1 - p)) ** 0.5 - 1
    return None if excess <= 0 else f"{dropped} of {asked} elements are dropped, with p = {p}"


def keeps_the_others(inputs, outputs, scalars):
    x, y, p = inputs["x"], outputs["y"], scalars["p"]
    # 2^-8 and 2^-25: rounding to the output dtype, bfloat16 or float16's subnormals at the coarsest
    off = (y - x / (1 - p or 1.0)).abs() > 2.0**-8 * y.abs() + 2.0**-25
    wrong = (off & (y != 0)).sum().item()
    return None if not wrong else f"{wrong} elements are neither 0 nor x / (1 - p)"


operator = Operator(
    name="dropout",
    about="dropout, its mask a function of a seed and the element's index",
    source="Srivastava et al., Dropout, JMLR 15, 2014; Philox-4x32-10: Salmon, Moraes, Dror and Shaw, SC 2011",
    inputs=(TensorSpec(name="x", shape="*shape"),),
    outputs=(TensorSpec(name="y", shape="*shape"),),
    scalars=(
        Scalar(name="p", default=0.1, about="the probability that an element is dropped"),
        Scalar(name="seed", default=0, about="64 bits; the same seed gives the same mask on every backend"),
    ),
    constraints=(
        Constraint(name="is_a_probability", expression="p >= 0 and p <= 1", about="with p = 1 all elements are 0"),
    ),
    reference=reference,
    flops="prod(shape)",
    tolerance=Tolerance(about="one product, by a factor that is rounded to float32"),
    laws=(
        Law(
            name="drops_the_share",
            about="the share p of the elements is 0, so the expectation of y is x",
            holds=drops_the_share,
        ),
        Law(
            name="keeps_the_others",
            about="every other element is x / (1 - p): the variance of y / x is p / (1 - p)",
            holds=keeps_the_others,
        ),
    ),
    cases=(
        Case(name="one_element", axes={"shape": (1,)}, scalars={"p": 0.0}, why="the smallest call: kept for certain"),
        Case(
            name="scalar_rank",
            axes={"shape": ()},
            scalars={"p": 0.0},
            why="a tensor without axes still has one element",
        ),
        Case(name="empty", axes={"shape": (0, 16)}, why="no element at all"),
        Case(
            name="odd_ranks",
            axes={"shape": (2, 3, 5, 7)},
            scalars={"p": 0.5},
            why="four odd axes: the index runs through all of them",
        ),
        Case(
            name="ragged",
            axes={"shape": (4099,)},
            scalars={"p": 0.5, "seed": 1},
            why="a last block of the generator that is used in part",
        ),
        Case(
            name="prime",
            axes={"shape": (70001,)},
            scalars={"p": 0.1, "seed": 77},
            why="many blocks of threads, and a ragged end",
        ),
        Case(
            name="half",
            axes={"shape": (64, 257)},
            scalars={"p": 0.5, "seed": 123456789},
            why="the largest variance of a mask",
        ),
        Case(
            name="nearly_all",
            axes={"shape": (8193,)},
            scalars={"p": 0.99, "seed": 3},
            why="one element in a hundred is left, a hundred times as large",
        ),
        Case(
            name="none",
            axes={"shape": (1000,)},
            scalars={"p": 0.0, "seed": 5},
            why="p = 0 changes nothing, not even the element with the least word",
        ),
        Case(
            name="wide_seed",
            axes={"shape": (2048,)},
            scalars={"p": 0.5, "seed": 2**62 + 2**33 + 9},
            why="both halves of the seed count",
        ),
        Case(
            name="other_half",
            axes={"shape": (2048,)},
            scalars={"p": 0.5, "seed": 2**33 + 9},
            why="a seed that differs from the last in its upper half alone",
        ),
        Case(
            name="negative_seed", axes={"shape": (515,)}, scalars={"p": 0.3, "seed": -1}, why="64 bits, all of them set"
        ),
        Case(
            name="special",
            axes={"shape": (263,)},
            distribution="special",
            scalars={"p": 0.5, "seed": 8},
            why="NaN and infinity are dropped like anything else",
        ),
        Case(
            name="large",
            axes={"shape": (4099,)},
            distribution="large",
            scalars={"p": 0.25, "seed": 2},
            why="products near the end of the range",
        ),
        Case(
            name="misaligned",
            axes={"shape": (2051,)},
            layout="misaligned",
            scalars={"p": 0.5, "seed": 6},
            why="vector accesses must not assume 16-byte addresses",
        ),
        Case(
            name="transposed",
            axes={"shape": (33, 65)},
            layout="transposed",
            scalars={"p": 0.5},
            why="the index is the element's, not the address's: refused or right",
        ),
        Case(name="strided", axes={"shape": (1031,)}, layout="strided", scalars={"p": 0.5}, why="every second element"),
    ),
    workloads=(
        Workload(
            name="bert_base_hidden",
            axes={"shape": (4, 512, 768)},
            source="BERT-base: hidden dropout 0.1, 4 sequences of 512",
            scale="laptop",
        ),
        Workload(
            name="gpt2_residual",
            axes={"shape": (1, 1024, 768)},
            source="GPT-2 small: residual dropout 0.1, one context of 1024",
            scale="laptop",
        ),
        Workload(
            name="bert_large_hidden",
            axes={"shape": (64, 512, 1024)},
            source="BERT-large: hidden dropout 0.1, 64 sequences of 512",
        ),
        Workload(
            name="bert_large_attention",
            axes={"shape": (32, 16, 512, 512)},
            source="BERT-large: attention dropout 0.1, 16 heads, 32 sequences of 512",
        ),
        Workload(
            name="t5_11b_ff",
            axes={"shape": (16, 512, 65536)},
            source="T5-11B: dropout 0.1 in the feed-forward layer, d_ff 65536, 16 sequences of 512",
        ),
    ),
    implementations=("cuda_vectors", "triton_blocks", "cpp_simd", "torch_eager", "torch_definition"),
)
