"""A task's own PyTorch, as it stands, as an implementation beside what is generated: the baseline of a speed-up. A
formula written out in PyTorch may take several times what a user's own call takes.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from typing import Any

from opforge.core.language.errors import UsageError, first_line
from opforge.forge.suites.source_names import SAID, names_of

OWN = "torch_task"
"""The file's name, without its suffix."""
ABOUT = "The task's own PyTorch, unchanged: the baseline"
_TAKEN = frozenset({*SAID, "run", "_opforge_torch", "_opforge_module", "_MODULE", "_PLACES"}) - {"BEST"}


def asked_elsewhere(large: Any, small: Any, example: Sequence[Any]) -> None:
    """Raises UsageError with the reason where a module that was made on one set of sizes does not serve another.

    large     made without memory, at the task's own sizes
    small     the same module on small sizes, in float64, with example tensors
    """
    import torch

    given = [one.double() if isinstance(one, torch.Tensor) else one for one in example]
    held = {**dict(small.named_parameters()), **dict(small.named_buffers())}
    try:
        with torch.no_grad():
            expected = small(*given)
            found = torch.func.functional_call(large.eval(), held, tuple(given))
    except Exception as error:
        # whatever the user's own module raises at other sizes: it is told, not swallowed
        raise UsageError(f"it holds for its own sizes alone ({type(error).__name__}: {first_line(error)}).") from error
    pairs = zip(*((one if isinstance(one, tuple | list) else (one,)) for one in (expected, found)), strict=True)
    if not all(
        isinstance(a, torch.Tensor) and a.device == b.device and torch.allclose(a, b, equal_nan=True) for a, b in pairs
    ):
        raise UsageError("it computes something else when its parameters are given to it.")


def module_file(text: str, inputs: Mapping[str, str], forward: Sequence[str], where: str) -> str:
    """The task's source with a `run` behind it that calls Model on an operator's inputs.

    inputs    the operator's inputs in order, each with the argument, parameter or buffer that it is
    forward   the arguments of Model.forward
    Raises UsageError with the reason where an argument is no input, or a name of the task is taken.
    """
    tree = ast.parse(text)
    taken = sorted(names_of(tree) & _TAKEN)
    if taken:
        raise UsageError(f"{where}: its {taken[0]} means something in a file of opforge.")
    by_source = {source: name for name, source in inputs.items()}
    missing = [one for one in forward if one not in by_source]
    if missing:
        raise UsageError(f"{where}: its argument {missing[0]} is no input of the operator.")
    held = {source: name for source, name in by_source.items() if source not in forward}
    arguments = ", ".join(by_source[one] for one in forward)
    places = "".join(f"    {source!r},\n".replace("'", '"') for source in held)
    lines = [
        f"def run({', '.join(inputs)}):",
        *(
            [
                f"    held = ({', '.join(held.values())}{',' * (len(held) == 1)})",
                "    if _opforge_torch.compiler.is_compiling():",
                "        named = dict(zip(_PLACES, held))",
                f"        return _opforge_torch.func.functional_call(_MODULE, named, ({arguments},))",
                "    # a parameter's place is set, as a user's module has it: functional_call takes 30 us",
                "    for (holder, key), tensor in zip(_HOLDERS, held):",
                "        holder[key] = tensor",
            ]
            if held
            else []
        ),
        f"    return _MODULE({arguments})",
    ]
    return (
        ("" if ast.get_docstring(tree) is not None else f'"""{ABOUT}."""\n\n')
        + f"{text.rstrip()}\n\n\n"
        + "# --- what opforge calls: Model without memory of its own, its parameters are inputs ---\n"
        + "import torch as _opforge_torch\n\n"
        + 'INACCURATE = "it rounds as PyTorch does after every step"\n\n\n'
        + "def _opforge_module():\n"
        + '    with _opforge_torch.device("meta"):\n'
        + '        given = globals().get("get_init_inputs", list)()\n'
        + "        named = len(given) == 2 and isinstance(given[0], list) and isinstance(given[1], dict)\n"
        + "        return (Model(*given[0], **given[1]) if named else Model(*given)).eval()\n\n\n"
        + "_MODULE = _opforge_module()\n"
        + (
            f"_PLACES = (\n{places})\n"
            + "_HOLDERS = []\n"
            + "for _place in _PLACES:\n"
            + '    _of, _, _key = _place.rpartition(".")\n'
            + "    _owner = _MODULE.get_submodule(_of)\n"
            + "    _HOLDERS.append((_owner._parameters if _key in _owner._parameters else _owner._buffers, _key))\n"
            if held
            else ""
        )
        + "\n\n"
        + "\n".join(lines)
        + "\n"
    )
