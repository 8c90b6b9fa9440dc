"""One step of AdamW on one parameter, in place: an output says which input it overwrites."""

from opforge.core.operator import Case, Law, Operator, Scalar, TensorSpec, Tolerance, Workload


def updated(param, grad, m, v, *, lr, beta1, beta2, eps, decay, step):
    """The moments and the parameter after the step, and the addends of each."""
    m, v = (beta1 * m, (1 - beta1) * grad), (beta2 * v, (1 - beta2) * grad * grad)
    root = (sum(v) / (1 - beta2**step)).sqrt() + eps
    return (param * (1 - lr * decay), lr / (1 - beta1**step) * sum(m) / root), m, v, root


def reference(param, grad, m, v, **scalars):
    (kept, moved), m, v, _ = updated(param, grad, m, v, **scalars)
    return kept - moved, sum(m), sum(v)


def magnitude(inputs, outputs, scalars):
    """What is added up; the moments cancel before they are divided by the root."""
    (kept, _), m, v, root = updated(*(inputs[name] for name in ("param", "grad", "m", "v")), **scalars)
    lr, beta1, step = scalars["lr"], scalars["beta1"], scalars["step"]
    sizes = sum(part.abs() for part in m)
    return {
        "param_out": kept.abs() + lr / (1 - beta1**step) * sizes / root,
        "m_out": sizes,
        "v_out": sum(part.abs() for part in v),
    }


def nothing_moves_without_lr(inputs, outputs, scalars):
    """The second moment is a weighted mean of squares."""
    return None if bool((outputs["v_out"] >= 0).all()) else "a mean of squares is negative"


operator = Operator(
    name="adamw_step",
    about="one step of AdamW on one parameter, in place",
    source="Loshchilov and Hutter, arXiv:1711.05101; an example of in-place outputs: docs/kernels.md",
    inputs=(
        TensorSpec(name="param", shape="n"),
        TensorSpec(name="grad", shape="n"),
        TensorSpec(name="m", shape="n", dtype="float32", about="first moment"),
        TensorSpec(name="v", shape="n", dtype="float32", domain="positive", about="second moment"),
    ),
    outputs=(
        TensorSpec(name="param_out", shape="n", overwrites="param"),
        TensorSpec(name="m_out", shape="n", dtype="float32", overwrites="m"),
        TensorSpec(name="v_out", shape="n", dtype="float32", overwrites="v"),
    ),
    scalars=(
        Scalar(name="lr", default=1e-3, about="learning rate"),
        Scalar(name="beta1", default=0.9, about="decay of the first moment"),
        Scalar(name="beta2", default=0.999, about="decay of the second moment"),
        Scalar(name="eps", default=1e-8, about="added to the root"),
        Scalar(name="decay", default=0.01, about="weight decay"),
        Scalar(name="step", default=10, about="counted from 1"),
    ),
    dtypes=("float32", "bfloat16"),
    reference=reference,
    flops="16 * n",
    tolerance=Tolerance(magnitude=magnitude, length="4", about="a few operations on each element, one rounding"),
    laws=(Law(name="second_moment", about="the second moment is not negative", holds=nothing_moves_without_lr),),
    cases=(
        Case(name="block", axes={"n": 1024}, why="one block"),
        Case(name="odd_tail", axes={"n": 1025}, why="one past a block"),
        Case(name="first_step", axes={"n": 77}, scalars={"step": 1, "lr": 0.1}, why="the largest correction of bias"),
        Case(name="one", axes={"n": 1}, why="a scale"),
        Case(name="empty", axes={"n": 0}, why="nothing to do"),
        Case(name="strided", axes={"n": 333}, layout="strided", why="a column of a matrix"),
        Case(name="small", axes={"n": 500}, distribution="tiny", why="gradients late in training"),
    ),
    workloads=(
        Workload(name="gpt2_mlp", axes={"n": 768 * 3072}, source="GPT-2 small, one MLP weight", scale="laptop"),
        Workload(name="llama3_8b_mlp", axes={"n": 4096 * 14336}, source="Llama 3 8B, one MLP weight"),
    ),
    implementations=("triton_blocks", "cpp_loop", "torch_eager"),
)
