"""Operators as PyTorch functions: which implementation, autograd, torch.compile."""

import dataclasses
import uuid
from unittest.mock import patch

import pytest
import torch

import simulated
from opforge.backends.shared_code import source_sha256
from opforge.core.definition.call_form import formed
from opforge.core.definition.gradient import wire
from opforge.core.definition.operator import Case, Operator, TensorSpec
from opforge.core.evidence.timing import Timing
from opforge.core.language.errors import UsageError
from opforge.dispatch import Chooser, Function, function_of
from opforge.dispatch.gradients import Backward
from opforge.forge import create
from opforge.machine import detect
from opforge.registry import load
from opforge.runner import Isolated, allocate, fill
from opforge.store import Store
from opforge.verify import QUICK
from opforge.workbench import BenchOptions, verify_all

# one worker makes the module's records, and all of its tests
pytestmark = pytest.mark.xdist_group("dispatch")


@pytest.fixture(scope="module")
def registry():
    return load()


@pytest.fixture(scope="module")
def passes(registry):
    """Real verification records of softmax on this CPU."""
    with Isolated() as host:
        return list(
            verify_all(
                registry,
                ["softmax"],
                BenchOptions(device="cpu", dtypes=("float32",), backends=("cpp", "torch"), effort=QUICK),
                host,
            )
        )


@pytest.fixture
def store(tmp_path):
    return str(tmp_path / "records.sqlite")


def function(registry, store, name="softmax", records=()):
    with Store.open(store) as opened:
        opened.add(list(records))
    with patch.object(Function, "_register"):  # the real functions keep their names in PyTorch
        return Function(registry.operator(name), Chooser(registry, store))


def test_nothing_verified_means_pytorch(registry, store):
    """An unverified kernel never runs in somebody's model."""
    softmax = function(registry, store)
    x = torch.randn(4, 33)
    choice = softmax.why(x)
    assert choice.implementation.name == "torch_eager"
    assert "opforge qualify softmax" in choice.why
    assert all("no Pass" in reason for _, reason in choice.passed_over)


def test_a_pass_admits_an_implementation(registry, store, passes):
    """Declared order among those that have a Pass: cpp comes before torch."""
    softmax = function(registry, store, records=passes)
    x = torch.randn(4, 33)
    choice = softmax.why(x)
    assert choice.implementation.backend == "cpp"
    torch.testing.assert_close(softmax.compute([x], {}), x.softmax(-1))


def test_a_changed_source_loses_its_pass(registry, store, passes):
    """Another text of the same code keeps it: a comment says nothing to the compiler."""
    x = torch.randn(4, 33)
    assert all(record.code_sha256 for record in passes if record.backend == "cpp")
    changed = [dataclasses.replace(record, source_sha256="0" * 64, code_sha256="1" * 64) for record in passes]
    assert function(registry, store, records=changed).why(x).implementation.name == "torch_eager"
    commented = [dataclasses.replace(record, id=uuid.uuid4().hex, source_sha256="0" * 64) for record in passes]
    assert function(registry, store, records=commented).why(x).implementation.name == "cpp_twopass"


def test_a_source_that_changes_under_a_running_process_loses_its_pass(tmp_path, store):
    """The next shape would be compiled from what is there then: in a notebook beside an editor, or where a package is
    upgraded under a server.
    """
    create(load(), "squares", tmp_path / "home")
    home = load([tmp_path / "home"])
    source = home.implementation("squares", "cpp_flat").source
    made = simulated.record(operator="squares", implementation="cpp_flat")
    squares = function(
        home,
        store,
        "squares",
        [
            dataclasses.replace(
                made, device=detect("cpu").name, source_sha256=source_sha256(source), axes={"shape": (4,)}, timing=None
            )
        ],
    )
    x = torch.tensor([1.0, 2.0, 3.0])
    assert squares.why(x).implementation.name == "cpp_flat"
    assert squares.compute([x], {}).tolist() == [1.0, 4.0, 9.0]
    source.write_text(source.read_text().replace("v * v", "v + v"))
    assert squares.why(x[:2]).implementation.name == "torch_eager"
    assert squares.compute([x[:2]], {}).tolist() == [1.0, 4.0]


def test_what_was_verified_meanwhile_is_found_after_a_refresh(registry, store, passes):
    """For the shapes that were called before, too."""
    softmax = function_of("softmax", Chooser(registry, store))
    x = torch.randn(4, 33)
    assert softmax.why(x).implementation.name == "torch_eager"
    close = torch.testing.assert_close
    close(softmax(x), x.softmax(-1))
    with Store.open(store) as opened:
        opened.add(list(passes))
    assert softmax.why(x).implementation.name == "torch_eager", "the store is not asked at every call"
    softmax.chooser.refresh()
    assert softmax.why(x).implementation.name == "cpp_twopass"
    close(softmax(x), x.softmax(-1))


def test_the_fastest_recorded_wins(registry, store, passes):
    def timed(record, seconds):
        timing = Timing(samples_s=(seconds,) * 5, batch=1, timer="host", cache="warm", overhead_s=0.0, conditions=())
        return dataclasses.replace(
            record, id=uuid.uuid4().hex, timing=timing, workload="w", axes={"lead": (4,), "cols": 33}
        )

    slow_cpp = [timed(record, 2.0 if record.backend == "cpp" else 1.0) for record in passes]
    choice = function(registry, store, records=slow_cpp).why(torch.randn(4, 33))
    assert choice.implementation.name == "torch_eager" and "1e+06 us expected from w" in choice.why


def test_records_of_another_kind_of_call_count_where_there_are_none_of_its_own(registry, store):
    """Two scalings of one matrix, or two forms of one activation, share a shape: the time of one says little about the
    other.
    """
    operator = registry.operator("gelu")
    items = {item.name: item for item in registry.implementations("gelu") if item.name in ("cpp_simd", "torch_eager")}

    def timed(name, approximate, seconds):
        made = simulated.record(seconds, operator="gelu", implementation=name, workload=approximate)
        here = {
            "device": detect("cpu").name,
            "source_sha256": source_sha256(items[name].source),
            "axes": {"shape": (4, 33)},
        }
        return dataclasses.replace(made, **here, scalars={"approximate": approximate})

    records = [timed("cpp_simd", "none", 2.0), timed("torch_eager", "none", 3.0), timed("torch_eager", "tanh", 1.0)]
    with Store.open(store) as opened:
        opened.add(records)

    def chosen(approximate):
        return (
            Chooser(registry, store)
            .choose(operator, {"shape": (4, 33)}, "float32", {"approximate": approximate}, "cpu", ["contiguous"])
            .implementation.name
        )

    assert (chosen("none"), chosen("tanh")) == ("cpp_simd", "torch_eager")


def test_a_layout_it_cannot_take_goes_to_one_that_can(registry, store, passes):
    softmax = function(registry, store, records=passes)
    x = torch.randn(33, 4).t()
    choice = softmax.why(x)
    assert choice.implementation.name == "torch_eager"
    assert any("strided" in reason for _, reason in choice.passed_over)
    torch.testing.assert_close(softmax.compute([x], {}), x.softmax(-1))


def test_calls_that_do_not_fit_say_so(registry, store):
    layernorm = function(registry, store, "layernorm")
    x, w = torch.randn(4, 8), torch.randn(8)
    with pytest.raises(UsageError, match="takes 3 tensors"):
        layernorm.compute([x, w], {})
    with pytest.raises(UsageError, match="one dtype"):
        layernorm.compute([x, w.half(), w], {})
    with pytest.raises(UsageError, match="elsewhere it is"):
        layernorm.compute([x, w[:4], w], {})
    with pytest.raises(UsageError, match="no parameter 'epsilon'"):
        layernorm.compute([x, w, w], {"epsilon": 1.0})


def test_the_front_door_under_autograd_and_compile(front_door):
    """opforge.ops as a user calls it: gradients are those of PyTorch, and torch.compile keeps one graph."""
    ops = front_door
    x = torch.randn(5, 17, dtype=torch.float32, requires_grad=True)
    w = torch.randn(17, requires_grad=True)
    b = torch.randn(17, requires_grad=True)
    wanted = torch.nn.functional.layer_norm(x, (17,), w, b, 1e-5)
    torch.testing.assert_close(ops.layernorm(x, w, b), wanted)
    gradient = torch.randn_like(wanted)
    expected = torch.autograd.grad(wanted, (x, w, b), gradient)
    found = torch.autograd.grad(ops.layernorm(x, w, b), (x, w, b), gradient)
    torch.testing.assert_close(found, expected)
    assert ops.softmax is ops.softmax
    assert "softmax" in dir(ops)
    with pytest.raises(AttributeError, match="Did you mean 'softmax'"):
        _ = ops.sofmax


@pytest.mark.slow
def test_the_front_door_inside_torch_compile(front_door):
    ops = front_door

    def model(x, w):
        return ops.rmsnorm(x * 2, w).sum()

    x, w = torch.randn(6, 16, requires_grad=True), torch.randn(16, requires_grad=True)
    ops.rmsnorm(x, w)
    compiled = torch.compile(model, fullgraph=True)
    eager = model(x, w)
    torch.testing.assert_close(compiled(x, w), eager)
    torch.testing.assert_close(torch.autograd.grad(compiled(x, w), (x, w)), torch.autograd.grad(eager, (x, w)))


@pytest.mark.parametrize(
    "backend", ["torch", "cpp", *(pytest.param(b, marks=pytest.mark.campaign) for b in ("cuda", "tilelang"))]
)
def test_get_kernel_gives_each_backend(backend):
    """Seed 000's call: the raw kernel of one backend."""
    import opforge

    x = torch.randn(3, 70)
    torch.testing.assert_close(opforge.get_kernel(backend, "softmax")(x), x.softmax(-1))


def test_get_kernel_names_what_is_there():
    import opforge

    with pytest.raises(UsageError, match=r"No backend named 'cud'\. Did you mean 'cuda'"):
        opforge.get_kernel("cud", "softmax")
    with pytest.raises(UsageError, match="takes float32, float16, bfloat16, not int32"):
        opforge.get_kernel("torch", "softmax")(torch.ones(2, 2, dtype=torch.int32))
    with pytest.raises(UsageError, match=r"takes 1 tensor \(x\), and \[1.0\] is a list"):
        opforge.get_kernel("torch", "softmax")([1.0])


WITH_GRADIENT = [
    (operator.name, gradient)
    for operator in load().operators()
    if operator.gradient
    for gradient in (operator.gradient, *operator.further_gradients)
]


def small_inputs(operator, gradient):
    """Float64 inputs (whole numbers stay whole) of the smallest plain case that has elements, and what `gradient` gives
    the gradients of.
    """
    optional = {spec.name for spec in operator.inputs if spec.optional}
    needed = optional & {spec.name for spec in gradient.inputs if not spec.optional}
    plain = [
        case
        for case in operator.cases
        if case.distribution == "normal"
        and case.layout == "contiguous"
        and all(case.scalars.get(f"has_{name}", True) for name in needed)
        and all(0 not in full(spec, case) for spec in operator.inputs)
    ]
    case = min(plain, key=lambda case: abs(sum(torch.Size(full(spec, case)).numel() for spec in operator.inputs) - 200))
    arena = allocate(operator, case, "float32")
    fill(arena, operator, case, 7)
    there = formed(operator, operator.scalar_values(case.scalars))
    found = [arena.tensors("input")[spec.name].clone() for spec in there.inputs]
    arena.close()
    return [tensor.double() if tensor.is_floating_point() else tensor for tensor in found], operator.scalar_values(
        case.scalars
    )


def full(spec, case):
    from opforge.core.definition.shapes import full_shape

    return full_shape(spec.shape, case.axes)


def test_a_gradient_operator_that_is_not_there_is_said_to_be_one(registry, store):
    """The message named an unknown operator alone, on access to one that is there."""
    orphan = dataclasses.replace(registry.operator("softmax"), name="orphan", gradient="nowhere")
    with pytest.raises(UsageError, match=r"orphan names 'nowhere' for its gradients.*opforge new nowhere"):
        Function(orphan, Chooser(registry, store))


@pytest.mark.parametrize(("name", "gradient"), WITH_GRADIENT)
def test_a_gradient_operator_is_the_derivative_of_its_forward(registry, name, gradient):
    """Its reference in float64 against autograd through the forward's reference: the oracle of the one is the
    derivative of the other.
    """
    operator = registry.operator(name)
    tensors, scalars = small_inputs(operator, registry.operator(gradient))
    operator, gradient = (formed(item, scalars) for item in (operator, registry.operator(gradient)))
    wiring = wire(operator, gradient)
    leaves = [tensor for tensor, place in zip(tensors, wiring.gives, strict=True) if place is not None]
    assert leaves, "it gives the gradient of no input"
    for leaf in leaves:
        leaf.requires_grad_(True)
    returned = operator.reference(*tensors, **scalars)
    outputs = returned if isinstance(returned, tuple) else (returned,)
    # whole numbers have no gradient
    incoming = [torch.randn_like(output) if output.is_floating_point() else None for output in outputs]
    followed = [(output, gradient) for output, gradient in zip(outputs, incoming, strict=True) if gradient is not None]
    wanted = torch.autograd.grad([output for output, _ in followed], leaves, [gradient for _, gradient in followed])
    sources = {"input": tensors, "output": outputs, "incoming": incoming}
    given = gradient.reference(
        *(sources[kind][place] for kind, place in wiring.takes), **{name: scalars[name] for name in wiring.scalars}
    )
    results = given if isinstance(given, tuple) else (given,)
    found = [results[place] for place in wiring.gives if place is not None]
    torch.testing.assert_close(tuple(found), wanted, rtol=1e-9, atol=1e-9)


def test_the_gradient_takes_its_best_verified_implementation(registry, store):
    """The route as well as the answer: with a Pass on record the backward pass runs the C++ kernel."""
    with Isolated() as host:
        options = BenchOptions(device="cpu", dtypes=("float32",), backends=("cpp",), effort=QUICK)
        records = list(verify_all(registry, ["softmax_backward"], options, host))
    with Store.open(store) as opened:
        opened.add(records)
    softmax = function_of("softmax", Chooser(registry, store))
    gradient = softmax.chooser.functions["softmax_backward"]
    x = torch.randn(6, 33, requires_grad=True)
    dy = torch.randn(6, 33)
    assert gradient.why(x.detach(), dy).implementation.name == "cpp_twopass"
    found = torch.autograd.grad(softmax(x), x, dy)
    torch.testing.assert_close(found, torch.autograd.grad(x.softmax(-1), x, dy))
    assert len(gradient._prepared) == 1


def test_gradients_that_arrive_expanded_and_are_differentiated_again(registry, store):
    """The gradient of a sum has strides of 0; a Hessian needs the gradient's own graph, through y as well as through
    dy.
    """
    softmax = function_of("softmax", Chooser(registry, store))
    x = torch.randn(4, 9, requires_grad=True)
    weight = torch.randn(4, 9)

    def of_a_sum(form):
        # rows are summed, so what arrives is one row expanded to four; it differs from column to column, where a
        # constant gives a gradient of zero
        return torch.autograd.grad((form(x * weight).sum(0) * weight[0]).sum(), x)

    assert of_a_sum(lambda x: x.softmax(-1))[0].abs().max() > 0.01
    torch.testing.assert_close(of_a_sum(softmax), of_a_sum(lambda x: x.softmax(-1)))

    def hessian_product(form):
        (first,) = torch.autograd.grad((form(x) ** 3 * weight).sum(), x, create_graph=True)
        return torch.autograd.grad((first * weight).sum(), x)

    torch.testing.assert_close(hessian_product(softmax), hessian_product(lambda x: x.softmax(-1)))


def product(x, w):
    return x * w, x + w


def operator_named(name, inputs, outputs, reference):
    def specs(names):
        return tuple(TensorSpec(name=item, shape="*s") for item in names.split())

    return Operator(
        name=name,
        about="",
        inputs=specs(inputs),
        outputs=specs(outputs),
        reference=reference,
        flops="1",
        cases=(Case(name="c", axes={"s": (2,)}, why="w"),),
    )


def test_what_the_gradient_operator_leaves_out_comes_from_the_reference():
    """It gives dx alone: dw is differentiated, and for that all inputs are kept; without it only what is taken."""
    forward = operator_named("product", "x w", "p q", product)
    gradient = operator_named("product_backward", "w dp dq", "dx", lambda w, dp, dq: dp * w + dq)
    backward = Backward(operator=forward, wiring=wire(forward, gradient), call=gradient.reference)
    x, w, dp, dq = (torch.randn(5) for _ in range(4))
    assert backward.kept((x, w), (x, x)) == (None, w, None, None)
    w.requires_grad_(True)
    kept = backward.kept((x, w), (x, x))
    dx, dw = backward(kept, (dp, dq), {}, (True, True))
    torch.testing.assert_close((dx, dw), (dp * w + dq, dp * x + dq))
    assert backward(kept, (dp, dq), {}, (False, True))[0] is None


def test_further_gradient_operators_are_called_where_their_input_needs_one():
    """A second operator gives dw, and is left alone until that is wanted; what it takes is kept for it then."""
    asked = []

    def second(x, dp, dq):
        asked.append(True)
        return dp * x + dq

    forward = operator_named("product", "x w", "p q", product)
    first, other = (
        Backward(operator=forward, wiring=wire(forward, part), call=part.reference)
        for part in (
            operator_named("product_backward", "w dp dq", "dx", lambda w, dp, dq: dp * w + dq),
            operator_named("product_w_backward", "x dp dq", "dw", second),
        )
    )
    backward = dataclasses.replace(first, further=(other,))
    x, w, dp, dq = (torch.randn(5) for _ in range(4))
    assert backward.kept((x.requires_grad_(True), w), (x, x)) == (None, w, None, None)
    assert backward((None, w, None, None), (dp, dq), {}, (True, False))[1] is None and not asked
    w.requires_grad_(True)
    kept = backward.kept((x, w), (x, x))
    assert kept == (x, w, None, None)
    dx, dw = backward(kept, (dp, dq), {}, (True, True))
    torch.testing.assert_close((dx, dw), (dp * w + dq, dp * x + dq))
    assert asked == [True]


def test_names_that_join_nothing_say_so():
    forward = operator_named("product", "x w", "p q", product)
    with pytest.raises(UsageError, match=r"takes 'dr', which is nothing that product has: .*dp, dq"):
        wire(forward, operator_named("other", "x dr", "dx", product))
    with pytest.raises(UsageError, match="gives dz; the gradients of product are called dx, dw"):
        wire(forward, operator_named("other", "x dp", "dz", product))


def test_indices_are_drawn_within_their_bound(registry):
    """Whole numbers below the number of classes whatever the distribution, some of them the index that means: leave
    this row out.
    """
    operator = registry.operator("cross_entropy")
    for distribution in ("normal", "large", "special"):
        case = Case(
            name="c",
            axes={"lead": (400,), "classes": 7},
            why="w",
            distribution=distribution,
            scalars={"ignore_index": -5},
        )
        arena = allocate(operator, case, "float32")
        fill(arena, operator, case, 11)
        values = set(arena.tensors("input")["target"].tolist())
        arena.close()
        assert values == {-5, *range(7)}
