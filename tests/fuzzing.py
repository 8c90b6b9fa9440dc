"""Bad inputs: definitions, configs, imports, expressions, flags. Each attempt must end with a refusal in words or with
success.
"""

import contextlib
import copy
import io
import json
import os
import random
import string
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from opforge.core.language.errors import OpforgeError

WORDS = [
    "softmax",
    "softmax:torch_eager",
    "@",
    "[",
    "]",
    "=",
    "--dtype",
    "--run",
    "--against",
    "--limit",
    "-1",
    "1e99",
    "nan",
    "../..",
    "\x00",
    "\u202e",
    "float32",
    "🙂",
    "",
    " ",
    "-",
    "--",
]
VERBS = (
    "list",
    "show",
    "history",
    "baseline",
    "compare",
    "check",
    "records",
    "report",
    "inspect",
    "verify",
    "bench",
    "new",
    "machine",
    "build",
    "doctor",
)
SAFE = {"history", "baseline", "compare", "check", "records", "show", "report", "list"}
"""Verbs that a fuzzed command line may really start: they neither measure nor write outside their store on bad
words.
"""


def refused_or_fine(action: Callable[[], object]) -> Callable[[], None]:
    """The action, with opforge's own refusals and the command line's exits taken for what they are."""

    def attempt() -> None:
        with contextlib.suppress(OpforgeError):
            action()

    return attempt


def text(chance: random.Random, longest: int = 30) -> str:
    """Characters of all kinds."""
    alphabet = string.printable + "äß漢🙂\x00\u202e\u2028"
    return "".join(chance.choice(alphabet) for _ in range(chance.randint(0, longest)))


def sides(chance: random.Random) -> Callable[[], object]:
    from opforge.workbench import parse_side

    words = "".join(
        chance.choice([text(chance, 8), ":", "@", "[", "]", "=", ",", "softmax"]) for _ in range(chance.randint(0, 8))
    )
    return lambda: parse_side(words)


FORMS = (
    *(
        "({a}) + ({b})",
        "({a}) * ({b})",
        "({a}) // ({b})",
        "({a}) % ({b})",
        "({a}) ** ({b})",
        "({a}) / ({b})",
        "({a}) < ({b})",
        "({a}) << ({b})",
    ),
    *("({a}) in ({b})", "({a})[({b})]", "-({a})", "({a}) if ({b}) else ({c})", "not ({a}) and ({b})"),
    *(
        "prod({a})",
        "last({a})",
        "next_pow2({a})",
        "cdiv({a}, {b})",
        "sqrt({a})",
        "log2({a})",
        "len({a})",
        "max({a}, {b})",
    ),
)


def expression(chance: random.Random, depth: int) -> str:
    """An expression of the language, most of the time; its values are another question."""
    if depth == 0 or chance.random() < 0.2:
        return chance.choice(
            [
                "rows",
                "cols",
                "lead",
                "none",
                "0",
                "-1",
                "2",
                "1e308",
                "9" * 30,
                "'x'",
                "()",
                "(1, 2)",
                "True",
                "x.y",
                "lambda: 1",
                "__import__('os')",
                "\x00",
            ]
        )
    a, b, c = (expression(chance, depth - 1) for _ in range(3))
    return chance.choice(FORMS).format(a=a, b=b, c=c)


def expressions(chance: random.Random) -> Callable[[], object]:
    from opforge.core.language.expr import evaluate

    words = expression(chance, chance.randint(0, 5)) + chance.choice(["", "", "", ")", " +", text(chance, 3)])
    return lambda: evaluate(words, {"rows": 3, "cols": 0, "lead": (4, 5)})


def lines(chance: random.Random) -> Callable[[], object]:
    from opforge.core.evidence.record import to_json
    from opforge.store import read_lines
    from test_store import JUNK, record

    data = to_json(record(1))
    for _ in range(chance.randint(1, 3)):
        inner = data
        while isinstance(inner, dict) and inner:
            key = chance.choice(list(inner))
            if chance.random() < 0.5 or not isinstance(inner[key], dict):
                inner[key] = copy.deepcopy(chance.choice(JUNK))
                break
            inner = inner[key]
    line = json.dumps(data)
    if chance.random() < 0.5:
        place = chance.randrange(len(line))
        line = line[:place] + text(chance, 3) + line[place + chance.randint(0, 5) :]
    return lambda: list(read_lines([line]))


def definitions(chance: random.Random) -> Callable[[], object]:
    source = (
        "from opforge.core.operator import Case, Operator, TensorSpec\noperator = Operator(name='bad', about='', "
        "inputs=(TensorSpec(name='x', shape='rows cols'),),\n"
        "    outputs=(TensorSpec(name='y', shape='rows cols'),), reference=lambda x: x, flops='rows',\n"
        "    cases=(Case(name='one', axes={'rows': 1, 'cols': 1}, why='small'),), implementations=('torch_a',))\n"
    )
    kernel = (
        '"""Idea."""\nSPACE = {"block": (1, 2)}\nDEFAULT = {"block": 1}\nSUPPORTS = {"a": "rows > 0"}\n\n\ndef '
        "run(x):\n    return x\n"
    )
    which = chance.random() < 0.5
    mutated = kernel if which else source
    for _ in range(chance.randint(1, 3)):
        place = chance.randrange(len(mutated))
        mutated = mutated[:place] + text(chance, 4) + mutated[place + chance.randint(0, 6) :]

    def attempt() -> object:
        from opforge.registry import load

        with tempfile.TemporaryDirectory() as folder:
            home = Path(folder) / "bad"
            home.mkdir()
            # a guest's definition may write to the terminal or warn; only how it ends matters here
            (home / "op.py").write_text(source if which else mutated, encoding="utf-8", errors="surrogatepass")
            (home / "torch_a.py").write_text(mutated if which else kernel, encoding="utf-8", errors="surrogatepass")
            return load([Path(folder)]).implementations("bad")

    return attempt


def baselines(chance: random.Random) -> Callable[[], object]:
    from opforge.gate import Baseline, load_baseline, save_baseline
    from simulated import record

    def attempt() -> object:
        with tempfile.TemporaryDirectory() as folder:
            path = save_baseline(
                Baseline(name="b", promoted_at="", run="", records=(record(),)), Path(folder) / "b.json"
            )
            data = bytearray(path.read_bytes())
            for _ in range(chance.randint(1, 3)):
                data[chance.randrange(len(data))] = chance.randrange(256)
            path.write_bytes(data)
            return load_baseline(path)

    return attempt


def flags(chance: random.Random) -> Callable[[], object]:
    from opforge.cli.app import command_line

    app = command_line()

    words = [chance.choice(WORDS) if chance.random() < 0.7 else text(chance, 6) for _ in range(chance.randint(0, 4))]
    verb = chance.choice(VERBS)
    if verb not in SAFE:
        words = ["--no-such-flag", *words]

    def attempt() -> None:
        out = io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out), contextlib.suppress(SystemExit):
            app([verb, *words])

    return attempt


KINDS = (sides, expressions, lines, definitions, baselines, flags)


def attempts(count: int, seed: int = 7) -> Iterator[tuple[str, Callable[[], None]]]:
    """`count` attempts, all kinds in turn, always the same ones; what they keep goes into a folder that is removed."""
    chance = random.Random(seed)
    before = {name: os.environ.get(name) for name in ("OPFORGE_STORE", "XDG_DATA_HOME", "XDG_CACHE_HOME")}
    here = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        os.environ.update(
            OPFORGE_STORE=f"{folder}/records.sqlite", XDG_DATA_HOME=f"{folder}/data", XDG_CACHE_HOME=f"{folder}/cache"
        )
        os.chdir(folder)
        try:
            for number in range(count):
                kind = KINDS[number % len(KINDS)]
                yield kind.__name__, refused_or_fine(kind(chance))
        finally:
            os.chdir(here)
            for name, value in before.items():
                if value is None:
                    del os.environ[name]
                else:
                    os.environ[name] = value
