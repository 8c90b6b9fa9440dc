"""A definition's bound is the same whoever asks: adequacy, a judge, early or late."""

from __future__ import annotations

import ast
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from opforge.core.definition.operator import Case, Tolerance
from opforge.core.language.errors import UsageError
from opforge.forge import from_formula
from opforge.forge.generate import generate
from opforge.registry import load
from opforge.registry.definition_reach import check_reach
from opforge.registry.discovery import PACKAGE_HOME
from opforge.verify.extra.adequacy import require
from opforge.verify.oracle import asked_before
from opforge.verify.oracle.expectation import consult

DEFINITION = '''"""max(x, 0)."""
import gc
import inspect
import itertools
import sys
import time
from opforge.core.operator import Case, Operator, TensorSpec, Tolerance

calls, started = itertools.count(), time.monotonic()

def looks():
    return any("adequacy" in frame.filename for frame in inspect.stack())

def by_frame():
    frame, names = getattr(sys, "_get" + "frame")(), []
    while frame:
        names.append(frame.f_code.co_filename)
        frame = frame.f_back
    return any("adequacy" in name for name in names)

def by_traceback():
    try:
        raise ValueError
    except ValueError as error:
        return error.__traceback__.tb_frame.f_back is None

def by_objects():
    return len(gc.get_objects()) < 0

def by_file():
    with open(__file__) as file:
        return "adequacy" in file.read()

def by_caught():
    try:
        return looks()
    except Exception:
        return False

def by_count():
    return next(calls) < 40

def honest():
    import fractions
    return True

def magnitude(inputs, outputs, scalars):
    return {{"y": outputs["y"].abs() if {narrow} else 1e7 * (outputs["y"].abs() + 1)}}

operator = Operator(
    name="neutral", about="max(x, 0)",
    inputs=(TensorSpec(name="x", shape="*shape"),), outputs=(TensorSpec(name="y", shape="*shape"),),
    reference=lambda x: x.clamp(min=0), flops="prod(shape)", dtypes=("float32",),
    tolerance=Tolerance(magnitude=magnitude), cases=(Case(name="plain", axes={{"shape": (7, 9)}}, why="plain"),
    Case(name="row", axes={{"shape": (1, 65)}}, why="row")),
)
'''


def defined(tmp_path, narrow, monkeypatch):
    """The operator of a home whose bound is narrow when `narrow` says so; its user has said that it is trusted."""
    monkeypatch.setenv("OPFORGE_TRUSTED_HOMES", str(tmp_path))
    folder = tmp_path / "neutral"
    folder.mkdir(exist_ok=True)
    (folder / "op.py").write_text(DEFINITION.format(narrow=narrow))
    return load([tmp_path]).operator("neutral")


@pytest.mark.parametrize(
    ("narrow", "said"),
    [
        ("looks()", "looks at the call stack"),
        ("by_frame()", "looks at the call stack"),
        ("by_traceback()", "looks at the call stack, through a traceback"),
        ("by_objects()", "looks at other code's objects"),
        ("by_caught()", "looks at the call stack"),
        ("by_file()", "looks at a file"),
    ],
)
def test_a_bound_that_looks_at_who_asks_is_refused(tmp_path, narrow, said, monkeypatch):
    """However it is spelt: Python tells of the look itself. One that is wide for all but adequacy made relu(x) * 0.9
    a Pass.
    """
    with pytest.raises(UsageError, match=said) as told:
        require(defined(tmp_path, narrow, monkeypatch))
    assert str(told.value).endswith("Correct op.py.") and "depend on who asks, or when" in str(told.value)


def test_a_bound_that_counts_its_calls_is_refused(tmp_path, monkeypatch):
    """It looks at nothing: what was asked before is asked again, and gets another answer."""
    operator = defined(tmp_path, "by_count()", monkeypatch)
    with pytest.raises(UsageError, match="depends on who asks, or when: asked again about the same inputs"):
        for seed in range(400):
            consult(
                operator, Case(name="x", axes={"shape": (3, 5)}, why=""), "float32", {"x": torch.randn(3, 5) + seed}
            )


def test_an_honest_bound_is_asked_again_and_stays(tmp_path, monkeypatch):
    """Imports inside of a function read files, and look at nothing."""
    operator = defined(tmp_path, "honest()", monkeypatch)
    require(operator)
    for seed in range(60):
        consult(operator, Case(name="x", axes={"shape": (3, 5)}, why=""), "float32", {"x": torch.randn(3, 5) + seed})
    assert len(asked_before._asks["neutral", str(operator.folder)]) == asked_before.KEPT


REACHES = {
    "import time": "import time",
    "import gc, math": "import gc",
    "from opforge.verify.oracle import asked_before": "import opforge.verify.oracle",
    "from opforge import runner": "import opforge.runner",
    "from opforge.core.language import blind": "opforge.core.language: blind",
    "from torch import sys": "torch: sys",
    "import torch.utils.benchmark": "torch.utils.benchmark: utils",
    "import torch\nnow = torch.cuda.Event": ".Event",
    "import torch as t\nframe = t.sys._getframe": "._getframe",
    "import torch as t\nframe = getattr(t, 'sy' + 's')": "getattr",
    "import torch as t\nframe = getattr(t, 'sys')": "getattr",
    "look = getattr": "getattr as a value",
    "look = __import__('sys')": "__import__",
    "look = eval('1')": "eval",
    "look = open('/proc/self/stat')": "open",
    "look = [].__class__.__base__.__subclasses__()": "__",
    "look = (lambda: 1).__globals__": ".__globals__",
    "from string import Formatter": "string: Formatter",
    "from operator import attrgetter": "operator: attrgetter",
    "from pathlib import Path\ntext = Path('x').read_text()": ".read_text",
    "import random\nos = random._os": "._os",
    "import torch\ntorch.equal = lambda a, b: True": "torch.equal is changed",
    "import torch\nfew = torch.get_num_threads()": ".get_num_threads",
    "from opforge.core.definition.dtypes import DTYPES\nDTYPES['float32'] = 1": "DTYPES['float32'] is changed",
    "calls = 0\ndef count():\n    global calls": "global calls",
    "import torch\nclass T(torch.Tensor):\n    def __torch_function__(self): pass": "__torch_function__",
    "try:\n    raise ValueError\nexcept ValueError as e:\n    back = e.__traceback__": ".__traceback__",
    "import torch\nlibrary = torch.ops.load_library('x')": ".load_library",
    "T = type('T', (), {})": "type('T', (), {})",
    "import sympy": "import sympy",
    "match 1:\n    case object(tb_frame=frame):\n        pass": "tb_frame",
    "where = '{0.tb_frame.f_back}'.format(ValueError())": "tb_frame",
    "import numpy as np\nnow = np.datetime64('now')": ".datetime64",
    "import numpy as np\nnp.testing.measure('1')": ".measure",
    "from torch.utils import cpp_backtrace": "torch.utils: utils",
    "from pathlib import Path\nfds = Path('/proc/self/fd/9').readlink()": ".readlink",
    "import torch\nmode = torch.utils.data.DataLoader": ".DataLoader",
    "from torch.monitor import Event": "torch.monitor: monitor",
}


@pytest.mark.parametrize("text", REACHES)
def test_a_definition_that_reaches_for_the_process_is_not_loaded(text):
    """Its text is read before any of it runs: without a clock, a stack or a file there is nothing to look at."""
    with pytest.raises(UsageError, match=r"op\.py:\d: .*OPFORGE_TRUSTED_HOMES=/home$") as told:
        check_reach(Path("/home/one/op.py"), text)
    assert REACHES[text] in str(told.value)


HONEST = """
import math, functools, itertools
from dataclasses import dataclass, replace
from pathlib import Path
import numpy as np, torch, torch.nn.functional as F
from opforge.core.definition.dtypes import DTYPES
from opforge.definitions.cases import ROWS
kernels = tuple(sorted(path.stem for path in Path(__file__).parent.glob("cpp_*")))
@dataclass(frozen=True)
class Side:
    name: str
    def __mul__(self, other): return replace(self, name=self.name * other)
@functools.lru_cache
def table(n): return torch.from_numpy(np.random.default_rng(n).normal(size=n))
def reference(x, *, scale=1.0):
    y = x.clone()
    y[..., 0] = 0
    y += torch.ops.aten.exp(x) * getattr(math, "pi") + torch.finfo(x.dtype).max * (type(x) is torch.Tensor)
    return F.softmax(y, -1).select(-1, 0).copy_(table(3)) if isinstance(x, torch.Tensor) else None
"""


def test_mathematics_is_loaded():
    """What definitions are written with; every definition of the package, and those that are generated, too."""
    check_reach(Path("/home/one/op.py"), HONEST)
    for path in (*PACKAGE_HOME.glob("*/*/op.py"), *(Path(__file__).parent / "redteam").rglob("op.py")):
        check_reach(path, path.read_text())


def test_what_judges_compare_with_is_a_plain_tensor(tmp_path, monkeypatch):
    """A subclass answers a comparison with a method of its own."""
    operator = defined(tmp_path, "True", monkeypatch)
    case = Case(name="x", axes={"shape": (3, 5)}, why="")

    class Own(torch.Tensor):
        pass

    for wrong in (
        replace(operator, reference=lambda x: x.clamp(min=0).as_subclass(Own)),
        replace(operator, tolerance=Tolerance(magnitude=lambda i, o, s: {"y": o["y"].abs().as_subclass(Own)})),
    ):
        with pytest.raises(UsageError, match=r"returns .*Own"):
            consult(wrong, case, "float32", {"x": torch.randn(3, 5)})


def test_a_generated_definition_holds_nothing_of_its_source_but_words(tmp_path):
    """Whatever stands in a definition's strings is a string in op.py: `op.py` has imports, functions, one call."""
    hostile = '")\nimport os\nos.system("touch /tmp/x")\n#\'\'\' \\" \u2028 \x0c import sys'
    asked = replace(
        from_formula("planted", f"y = x[*lead, cols] * 2  # {hostile.splitlines()[0]}"), about=hostile, source=hostile
    )
    generate(load(), asked, tmp_path, "en", None, ())
    text = (tmp_path / "planted" / "op.py").read_text()
    kinds = {type(node).__name__ for node in ast.parse(text).body}
    assert kinds == {"Expr", "ImportFrom", "FunctionDef", "Assign"} and "import os" in text
    check_reach(tmp_path / "planted" / "op.py", text)
    assert load([tmp_path]).operator("planted").about.count("os.system") == 1
