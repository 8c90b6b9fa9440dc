"""Definitions that were written when modules lay elsewhere go on working."""

import importlib
import sys
import warnings

import pytest

from opforge.backends.shared_code import modules_of
from opforge.core.moved import MOVED

OLD_OP = """from opforge.core.cases import row_layouts
from opforge.core.rounding import Errors, sum_errors
"""


def test_an_old_name_is_the_module_of_today_and_says_what_to_write():
    """One module under both names: a class of one is a class of the other, and its spec is its own."""
    with pytest.warns(DeprecationWarning, match=r"opforge\.core\.rounding is opforge\.definitions\.bounds\.sums now"):
        sys.modules.pop("opforge.core.rounding", None)
        old = importlib.import_module("opforge.core.rounding")
    from opforge.core.definition.rounding_errors import Errors
    from opforge.definitions.bounds import sums

    assert old is sums and old.Errors is Errors
    assert sums.__spec__.name == sums.__name__ == "opforge.definitions.bounds.sums"
    with pytest.raises(ModuleNotFoundError, match=r"opforge\.core\.rounded"):
        importlib.import_module("opforge.core.rounded")


@pytest.mark.parametrize("name", sorted(MOVED))
def test_every_old_name_has_a_module(name):
    """A table is right only as long as each of its rows is."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        assert importlib.import_module(name) is importlib.import_module(MOVED[name])


def test_what_a_definition_reaches_by_an_old_name_decides_with_it(tmp_path):
    """Whether a definition was found adequate is kept for the text of all that it imports."""
    definition = tmp_path / "op.py"
    definition.write_text(OLD_OP, encoding="utf-8")
    reached = {path.as_posix().partition("src/opforge/")[2] for path in modules_of(definition).values()}
    assert {"definitions/cases.py", "definitions/bounds/sums.py", "core/definition/operator.py"} <= reached
