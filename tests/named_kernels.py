"""Calls of a shipped operator's kernels by their names, for tests: the operator's folder under another name."""

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import torch

from opforge.dispatch import Choice, Chooser
from opforge.dispatch.named_call import call_named

APART = """
import sys
from pathlib import Path
import opforge.backends.triton_interpreter
import torch
from opforge.dispatch.named_call import call_named
folder, kernel, tensors, scalars = torch.load(sys.argv[1])
torch.save(call_named(Path(folder), kernel, *tensors, **scalars), sys.argv[2])
"""


class Named(Chooser):
    """The implementation of a name, verified or not."""

    def __init__(self, registry, wanted):
        super().__init__(registry)
        self.wanted = wanted

    def choose(self, operator, axes, dtype, scalars, device, layouts, manner=None):
        found = [item for item in self.registry.implementations(operator.name) if item.name == self.wanted]
        found += self.registry.implementations(operator.name)
        return Choice(implementation=found[0], config=found[0].default, why="for this test", passed_over=())


def renamed(operator, folder):
    """A copy of the operator in `folder`, by whose name it is called."""
    shutil.copytree(operator.folder, folder)
    definition = (folder / "op.py").read_text()
    (folder / "op.py").write_text(definition.replace(f'name="{operator.name}"', f'name="{folder.name}"'))
    return folder


def named(folder, kernel, *tensors, **scalars):
    """A call of that kernel; of Triton's in a process of its own: it decides at its import whether it interprets."""
    if not kernel.startswith("triton"):
        return call_named(folder, kernel, *tensors, **scalars)
    with tempfile.TemporaryDirectory() as place:
        given, found = Path(place) / "given", Path(place) / "found"
        torch.save((str(folder), kernel, tensors, scalars), given)
        done = subprocess.run([sys.executable, "-c", APART, given, found], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr[-3000:]
        return torch.load(found)
