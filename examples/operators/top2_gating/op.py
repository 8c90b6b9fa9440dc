"""Top-2 gating of a mixture of experts: the two most probable experts of each token, and their weights."""

from opforge.core.operator import Case, Constraint, Law, Operator, Scalar, TensorSpec, Ties, Tolerance, Workload


def reference(logits, *, renormalize):
    # stable: of equal logits the first expert
    chosen = logits.sort(dim=1, descending=True, stable=True).indices[:, :2]
    weights = logits.softmax(1).gather(1, chosen)
    return (weights / weights.sum(1, keepdim=True) if renormalize else weights), chosen


def magnitude(inputs, outputs, scalars):
    """A weight, by how far the arguments of exp are from 0: each unit of an argument is a unit of relative error."""
    logits = inputs["logits"]
    below = (logits - logits.amax(1, keepdim=True)).abs()
    spread = (logits.softmax(1) * below).sum(1, keepdim=True)
    return {"weights": outputs["weights"] * (1 + below.gather(1, outputs["chosen"]) + spread)}


def two_experts(inputs, outputs, scalars):
    first, second = outputs["chosen"].unbind(1)
    if bool((first == second).any()):
        return "a token has the same expert twice"
    total = outputs["weights"].double().sum(1)
    if scalars["renormalize"] and not bool(((total - 1).abs() <= 0.01).all()):
        return "renormalised weights do not sum to one"
    return None


def axes(tokens, experts):
    return {"tokens": tokens, "experts": experts}


operator = Operator(
    name="top2_gating",
    about="softmax over experts; the two largest with their places, of equal ones the first",
    source="Lepikhin et al., GShard, arXiv:2006.16668, 2020; renormalised as in Mixtral",
    inputs=(TensorSpec(name="logits", shape="tokens experts"),),
    outputs=(
        TensorSpec(name="weights", shape="tokens two"),
        TensorSpec(
            name="chosen",
            shape="tokens two",
            dtype="int64",
            ties=Ties(rule="first", scores="logits"),
            about="the more probable expert, then the other",
        ),
    ),
    scalars=(Scalar(name="renormalize", default=True, about="the two weights are divided by their sum"),),
    derived={"two": "2"},
    constraints=(Constraint(name="two_experts", expression="experts >= 2", about="there are two to choose"),),
    reference=reference,
    flops="6 * tokens * experts",
    tolerance=Tolerance(
        factor=2.0,
        length="experts // 64 + 4",
        magnitude=magnitude,
        about="a sum of exponentials shared by many accumulators, one division",
    ),
    laws=(Law(name="two_experts", about="two different experts", holds=two_experts),),
    cases=(
        Case(name="mixtral", axes=axes(33, 8), why="8 experts"),
        Case(name="odd", axes=axes(7, 13), scalars={"renormalize": False}, why="no power of two anywhere"),
        Case(name="two", axes=axes(5, 2), why="all experts are chosen"),
        Case(name="one_past_a_block", axes=axes(3, 129), scalars={"renormalize": False}, why="one past a power of two"),
        Case(name="ties", axes=axes(64, 8), distribution="integers", why="equal logits: the first ones"),
        Case(name="all_equal", axes=axes(4, 11), distribution="constant_rows", why="the first two"),
        Case(name="spread", axes=axes(9, 64), distribution="large", why="the second weight is next to nothing"),
        Case(name="empty", axes=axes(0, 4), why="no token"),
        Case(name="sliced", axes=axes(6, 10), layout="sliced", why="logits inside a wider matrix"),
    ),
    workloads=(
        Workload(
            name="mixtral_prompt", axes=axes(4096, 8), source="Mixtral 8x7B, a prompt of 4096 tokens", scale="laptop"
        ),
        Workload(name="gshard_2048", axes=axes(32768, 2048), source="GShard 600B, 2048 experts"),
    ),
    implementations=("triton_tokens", "cpp_tokens", "torch_eager"),
)
