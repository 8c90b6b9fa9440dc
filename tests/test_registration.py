"""Operators as torch.library knows them: in fresh processes before the first call, and in exported programs."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

import pytest
import torch

from opforge.core.definition.operator import Case, Operator, Scalar, TensorSpec
from opforge.dispatch.registration import register, schema_of
from opforge.forge import create
from opforge.registry import load


def fresh(code: str, *arguments: str, **environment: str) -> str:
    """What a new process prints that runs this code."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), *arguments],
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def test_the_import_registers_every_operator_and_looks_at_no_kernel():
    """Loading a program must not wait for records, kernels or the runner; `import opforge` alone must not load torch.

    The bound is a share of torch's own import, which the machine's load lengthens alike: 0.2 s against 1.3 s on two
    quiet cores.
    """
    said = fresh(
        """
        import sys, time
        import opforge
        assert "torch" not in sys.modules
        began = time.process_time()
        import torch
        between = time.process_time()
        import opforge.ops
        print((time.process_time() - between) / (between - began))
        from opforge.registry import load
        for name in load().names():
            getattr(torch.ops.opforge, name).default
        heavy = {"opforge.dispatch.function", "opforge.store", "opforge.runner", "opforge.backends", "sqlalchemy"}
        assert not heavy & set(sys.modules), heavy & set(sys.modules)
        assert str(torch.ops.opforge.rmsnorm.default._schema).endswith("float eps=9.9999999999999995e-07) -> Tensor")
        x = torch.randn(2, 8)
        assert torch.allclose(torch.ops.opforge.softmax(x), x.softmax(-1))
        assert torch.ops.opforge.softmax(x.to("meta")).is_meta
        """
    )
    assert float(said) < 0.3, said


def test_what_is_wrong_in_a_home_is_told_to_whoever_asks_for_it_and_not_by_the_import(tmp_path):
    """A definition that cannot be loaded, and cases that do not fit: asking every case of every operator was most of
    what `import opforge.ops` cost.
    """
    (tmp_path / "crooked").mkdir()
    (tmp_path / "crooked" / "op.py").write_text("operator = nonsense\n")
    create(load(), "squares", tmp_path)
    file = tmp_path / "squares" / "op.py"
    file.write_text(file.read_text().replace('axes={"shape": (7, 129)}', 'axes={"shpe": (7, 129)}', 1))
    said = fresh(
        """
        from opforge import ops
        import torch
        print(torch.ops.opforge.softmax.default)
        print(torch.ops.opforge.squares.default._schema)
        ones = torch.ones(2)
        for call in (lambda: ops.crooked, lambda: torch.ops.opforge.squares(ones), lambda: ops.squares(ones)):
            try:
                call()
            except AttributeError as error:
                print(error)
        """,
        OPFORGE_HOME=str(tmp_path),
    )
    assert "opforge.softmax.default" in said and "crooked/op.py cannot be loaded: NameError" in said
    assert said.count("case 'odd_tail' has the axes shpe; it needs shape") == 2, said


@pytest.mark.slow
def test_an_exported_program_is_loaded_by_a_fresh_process(tmp_path):
    """Saved with its parameters, and with those that have their defaults."""
    file = str(tmp_path / "program.pt2")
    fresh(
        """
        import sys, torch
        from opforge import ops

        class Model(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.weight = torch.nn.Parameter(torch.linspace(0.5, 1.5, 8))

            def forward(self, x, target):
                y = ops.gelu(ops.rmsnorm(x, self.weight, eps=1e-5), approximate="tanh")
                return ops.cross_entropy(ops.softmax(ops.rmsnorm(y, self.weight)), target)

        model, x, target = Model(), torch.linspace(-1, 1, 16).reshape(2, 8), torch.tensor([1, 2])
        program = torch.export.export(model, (x, target))
        torch.export.save(program, sys.argv[1])
        torch.save(model(x, target), sys.argv[1] + ".result")
        """,
        file,
    )
    fresh(
        """
        import sys, torch
        import opforge.ops

        program = torch.export.load(sys.argv[1])
        x, target = torch.linspace(-1, 1, 16).reshape(2, 8), torch.tensor([1, 2])
        wanted = torch.load(sys.argv[1] + ".result")
        torch.testing.assert_close(program.module()(x, target), wanted.detach())
        """,
        file,
    )


CALLS = {
    "softmax": lambda: (torch.randn(3, 5, requires_grad=True),),
    "rmsnorm": lambda: (torch.randn(3, 5, requires_grad=True), torch.randn(5, requires_grad=True)),
    "gelu": lambda: (torch.randn(3, 5, requires_grad=True), "tanh"),
    "mean_var": lambda: (torch.randn(3, 5, requires_grad=True),),
    "linear": lambda: tuple(torch.randn(*shape, requires_grad=True) for shape in ((3, 5), (4, 5), (4,))),
    "cross_entropy": lambda: (torch.randn(3, 5, requires_grad=True), torch.tensor([0, 4, 2])),
    "quantize_fp8": lambda: (torch.randn(3, 256),),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", CALLS)
def test_pytorchs_own_check_of_custom_operators_passes(name, front_door):
    """torch.library.opcheck: schema, shapes without contents, autograd, and compilation with dynamic shapes."""
    getattr(front_door, name)
    torch.library.opcheck(getattr(torch.ops.opforge, name).default, CALLS[name]())


def test_schemas_carry_the_defaults_of_parameters():
    """Each default stands in the schema as PyTorch reads it back, whatever its kind."""
    for operator in load().operators():
        read = torch._C.parse_schema(operator.name + schema_of(operator))
        assert [argument.name for argument in read.arguments] == [
            *(spec.name for spec in operator.inputs),
            *(scalar.name for scalar in operator.scalars),
        ]
        for scalar, argument in zip(operator.scalars, read.arguments[len(operator.inputs) :], strict=True):
            assert argument.default_value == scalar.default and type(argument.default_value) is type(scalar.default)


def made(default: float) -> Operator:
    return Operator(
        name="registered_twice",
        about="for this test",
        inputs=(TensorSpec(name="x", shape="*shape"),),
        outputs=(TensorSpec(name="y", shape="*shape"),),
        scalars=(Scalar(name="by", default=default),),
        reference=lambda x, by: x * by,
        flops="prod(shape)",
        cases=(Case(name="one", axes={"shape": (1,)}, why="for this test"),),
    )


def test_a_definition_that_changes_is_registered_again_and_one_that_stays_is_kept():
    """Compiled programs hold the custom operator: another chooser's function of the same definition serves it."""

    class Scaling:
        def __init__(self, more: float) -> None:
            self.more = more

        def compute(self, tensors, scalars):
            return tensors[0] * scalars["by"] * self.more

    x = torch.ones(2)
    first = register(made(3.0), lambda: Scaling(1.0)).custom
    call = torch.ops.opforge.registered_twice
    assert call(x).tolist() == [3.0, 3.0] and call(x, 5.0).tolist() == [5.0, 5.0]
    assert register(made(3.0), lambda: Scaling(10.0)).custom is first
    assert call(x).tolist() == [30.0, 30.0]
    assert register(made(4.0), lambda: Scaling(1.0)).custom is not first
    assert torch.ops.opforge.registered_twice(x).tolist() == [4.0, 4.0]
