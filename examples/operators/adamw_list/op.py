"""One step of AdamW on a list of parameters, in place: lists that are overwritten, as a fused optimiser has them."""

from opforge.core.operator import Case, Operator, Scalar, TensorSpec, Tolerance, Workload


def updated(param, grad, m, v, *, lr, beta1, beta2, eps, decay, step):
    """The moments and the parameter after the step, and the addends of each."""
    m, v = (beta1 * m, (1 - beta1) * grad), (beta2 * v, (1 - beta2) * grad * grad)
    root = (sum(v) / (1 - beta2**step)).sqrt() + eps
    return (param * (1 - lr * decay), lr / (1 - beta1**step) * sum(m) / root), m, v, root


def reference(params, grads, ms, vs, **scalars):
    new = []
    for given in zip(params, grads, ms, vs, strict=True):
        (kept, moved), m, v, _ = updated(*given, **scalars)
        new.append((kept - moved, sum(m), sum(v)))
    return tuple(list(part) for part in zip(*new, strict=True))


def magnitude(inputs, outputs, scalars):
    """What is added up; the moments cancel before they are divided by the root."""
    lr, beta1, step = scalars["lr"], scalars["beta1"], scalars["step"]
    found = {"params_out": [], "ms_out": [], "vs_out": []}
    for given in zip(*(inputs[name] for name in ("params", "grads", "ms", "vs")), strict=True):
        (kept, _), m, v, root = updated(*given, **scalars)
        sizes = sum(part.abs() for part in m)
        found["params_out"].append(kept.abs() + lr / (1 - beta1**step) * sizes / root)
        found["ms_out"].append(sizes)
        found["vs_out"].append(sum(part.abs() for part in v))
    return found


operator = Operator(
    name="adamw_list",
    about="one step of AdamW on a list of flat parameters, in place",
    source="Loshchilov and Hutter, arXiv:1711.05101; an example of lists: docs/kernels.md",
    inputs=(
        TensorSpec(name="params", shape="sizes", many="sizes"),
        TensorSpec(name="grads", shape="sizes", many="sizes"),
        TensorSpec(name="ms", shape="sizes", many="sizes", dtype="float32", about="first moments"),
        TensorSpec(name="vs", shape="sizes", many="sizes", dtype="float32", domain="positive", about="second moments"),
    ),
    outputs=(
        TensorSpec(name="params_out", shape="sizes", many="sizes", overwrites="params"),
        TensorSpec(name="ms_out", shape="sizes", many="sizes", dtype="float32", overwrites="ms"),
        TensorSpec(name="vs_out", shape="sizes", many="sizes", dtype="float32", overwrites="vs"),
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
    flops="16 * sum(sizes)",
    tolerance=Tolerance(magnitude=magnitude, length="4", about="a few operations on each element, one rounding"),
    cases=(
        Case(name="two", axes={"sizes": (1024, 1025)}, why="a block, and one past it"),
        Case(name="one", axes={"sizes": (77,)}, scalars={"step": 1, "lr": 0.1}, why="the largest correction of bias"),
        Case(name="many", axes={"sizes": (1, 300, 7, 64, 0, 5)}, why="small ones, one of them empty"),
        Case(name="strided", axes={"sizes": (33, 129)}, layout="strided", why="columns of matrices"),
    ),
    workloads=(
        Workload(
            name="gpt2_block",
            axes={"sizes": (768, 768, 768 * 2304, 2304, 768 * 768, 768, 768, 768, 768 * 3072, 3072, 768 * 3072, 768)},
            source="GPT-2 small, the parameters of one block",
            scale="laptop",
        ),
    ),
    implementations=("triton_each", "cpp_lists", "torch_foreach"),
)
