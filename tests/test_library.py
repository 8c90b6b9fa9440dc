"""Functions of other libraries, and files that cannot go through torch.compile."""

from __future__ import annotations

import dataclasses

import pytest

from opforge.backends import backend
from opforge.backends.interface import Call, Missing
from opforge.core.definition.implementation import COMPARED_WITH
from opforge.core.language.errors import EnvironmentLacks
from opforge.registry import load


def test_what_is_compared_with_says_which_package_it_calls():
    """A row that is missing must say what brings it; and nothing that is only compared with may be chosen."""
    registry = load([])
    found = [
        item
        for operator in registry.operators()
        for item in registry.implementations(operator.name)
        if item.backend == "library"
    ]
    assert len(found) >= 5 and all("==" in item.needs for item in found)
    assert "library" in COMPARED_WITH
    assert isinstance(backend("library").execution_mode("cpu"), Missing)


def test_a_missing_library_is_named_with_what_installs_it(tmp_path):
    source = tmp_path / "library_none.py"
    source.write_text(
        '"""Nobody\'s."""\nimport package_that_nobody_has\nNEEDS = "package-that-nobody-has==1"\n\ndef run(x):\n '
        "   return x\n"
    )
    item = dataclasses.replace(
        load([]).implementation("softmax", "library_liger"), source=source, needs="package-that-nobody-has==1"
    )
    with pytest.raises(EnvironmentLacks, match="pip install --no-deps package-that-nobody-has==1") as raised:
        backend("library").function(item)
    # what no process has to start for
    assert backend("library").lacks(item) == str(raised.value)  # type: ignore[attr-defined]
    for here in ("typer==9", "pyyaml", ""):
        assert backend("library").lacks(dataclasses.replace(item, needs=here)) is None  # type: ignore[attr-defined]


def test_what_torch_compile_never_ends_with_is_not_given_to_it(tmp_path):
    """A bench that waits for minutes, for a row that says nothing, is a bench that nobody runs."""
    registry = load([])
    source = tmp_path / "torch_endless.py"
    source.write_text(
        '"""Too much for Inductor."""\n\nNOT_COMPILED = "Inductor does not end with it"\n\n\ndef run(x, p, '
        "seed):\n    return x\n"
    )
    operator, item = (
        registry.operator("dropout"),
        dataclasses.replace(registry.implementation("dropout", "torch_compile"), source=source),
    )
    call = Call(
        operator=operator,
        axes={"shape": (64,)},
        dtype="float32",
        scalars=operator.scalar_values({}),
        device="cpu",
        config=item.default,
    )
    with pytest.raises(EnvironmentLacks, match="does not end"):
        backend("compile").prepare(item, call)
