"""The files that people know from templates: NAME_triton.py, NAME_baseline.py, NAME_accuracy.py, NAME_performance.py,
and NAME_test.py, which asks the last two. Each runs on its own, and is thin: it stands on the workbench.
"""

from __future__ import annotations

import re
from pathlib import Path

from opforge.forge.program.definition import Definition
from opforge.forge.program.ir import Program
from opforge.forge.write.emit import call

FUNCTIONS = ("triton", "baseline")
"""The files that hold the operator as a function of tensors."""


def four_files(definition: Definition, program: Program, implementations: tuple[str, ...]) -> dict[str, str]:
    """Names and texts of the files, for a folder that has these implementations."""
    name = definition.name
    triton = next(one for one in implementations if one.startswith("triton_"))
    native = next(one for one in implementations if one.startswith("cpp_"))
    return {
        f"{name}_triton.py": _function(
            definition, program, triton, "on Triton", "On a CPU the kernel is interpreted, so take small tensors there."
        ),
        f"{name}_baseline.py": _function(
            definition, program, "torch_eager", "in PyTorch", "What the Triton kernel is compared with."
        ),
        f"{name}_accuracy.py": _accuracy(name),
        f"{name}_performance.py": _performance(name, native, definition.target),
        f"{name}_test.py": _test(name),
    }


def target_of(folder: Path) -> float | None:
    """The speed-up that a generated folder asks for: TARGET of its NAME_performance.py; None where it says none."""
    path = folder / f"{folder.name}_performance.py"
    if not path.is_file():
        return None
    match = re.search(r"^TARGET(?:: float \| None)? = (\d+(?:\.\d+)?)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    return float(match[1]) if match else None


def _function(definition: Definition, program: Program, kernel: str, where: str, note: str) -> str:
    name, reads = definition.name, [name for name, _ in program.reads]
    count = len(program.writes)
    returned = "torch.Tensor" if count == 1 else f"tuple[{', '.join(['torch.Tensor'] * count)}]"
    given = [f"{one}: torch.Tensor" for one in reads]
    given += [f"{key}: float = {value!r}" for key, value in program.parameters]
    passed = ["FOLDER", "KERNEL", *reads, *(f"{key}={key}" for key, _ in program.parameters)]
    shapes = [f"{key}[{', '.join(axes)}]" for key, axes in program.reads]
    results = ", ".join(f"{write.name}[{', '.join(write.axes)}]" for write in program.writes)
    described = f"{results} of {', '.join(shapes)}."
    checks = [f"    assert {text}, {words}" for text, words in _checks(program)]
    return (
        f'"""{name} {where}: `{kernel}` beside this file, as a function of tensors.\n\n'
        f"{note} `python {name}_{'triton' if kernel != 'torch_eager' else 'baseline'}.py` calls it once.\n"
        '"""\n\nfrom pathlib import Path\n\nimport torch\n\nfrom opforge.dispatch import call_named\n\n'
        f'KERNEL = "{kernel}"\nFOLDER = Path(__file__).resolve().parent\n\n\n'
        + call(f"def {name}", given, 0, f" -> {returned}:")
        + f'\n    """{_wrapped(described)}"""\n'
        + "".join(f"{line}\n" for line in checks)
        + call("return call_named", passed, 4)
        + '\n\n\nif __name__ == "__main__":\n    torch.manual_seed(0)\n'
        + call(f"result = {name}", _samples(definition, program), 4)
        + "\n    print(result)\n"
    )


def _samples(definition: Definition, program: Program) -> list[str]:
    dtype = "" if "float32" in definition.dtypes else f", dtype=torch.{definition.dtypes[0]}"
    return [f"torch.rand({', '.join(map(str, _sizes(axes)))}{dtype})" for _, axes in program.reads]


def _sizes(axes: tuple[str, ...]) -> list[int]:
    """Small sizes, the same for the same axis: from the letters of its name."""
    return [2 + sum(map(ord, axis)) % 4 for axis in axes]


def _wrapped(text: str) -> str:
    return text if len(text) < 105 else text[:100].rsplit(" ", 1)[0] + " …"


def _checks(program: Program) -> list[tuple[str, str]]:
    """(condition, what it says as a literal) for one dtype, one device, and sizes that meet."""
    reads = [name for name, _ in program.reads]
    found: list[tuple[str, str]] = []
    for name in reads[1:]:
        found.append((f"{name}.dtype == {reads[0]}.dtype", f'"{name} has another dtype than {reads[0]}"'))
        found.append((f"{name}.device == {reads[0]}.device", f'"{name} is on another device than {reads[0]}"'))
    first: dict[str, str] = {}
    for name, axes in program.reads:
        star = next((at for at, axis in enumerate(axes) if axis.startswith("*")), len(axes))
        for at, axis in enumerate(axes):
            if axis.startswith("*"):
                continue
            # behind axes of any number, places are counted from the end
            place = f"{name}.shape[{at if at < star else at - len(axes)}]"
            if axis in first:
                found.append(
                    (f"{place} == {first[axis]}", f'"{name} has another {axis} than {first[axis].split(".")[0]}"')
                )
            else:
                first[axis] = place
    return found


def _accuracy(name: str) -> str:
    return (
        f'"""Is {name} right? What both functions call, on every case, against the float64 oracle.\n\n'
        f"    python {name}_accuracy.py --quick --dtype float32\n\n"
        "takes the options of `opforge verify`. Exit code 1 where a verdict is a failure.\n"
        '"""\n\nimport sys\nfrom pathlib import Path\n\n'
        f"import {name}_baseline\nimport {name}_triton\n\n"
        "from opforge.cli.app import main\n\nFOLDER = Path(__file__).resolve().parent\n\n\n"
        "def accuracy(options: list[str]) -> None:\n"
        '    """Verify, print a row for each, and end with the exit code."""\n'
        f"    kernels = [{name}_triton.KERNEL, {name}_baseline.KERNEL]\n"
        '    asked = [word for kernel in kernels for word in ("-i", kernel)]\n'
        '    sys.argv = ["opforge", "--home", str(FOLDER.parent), "verify", FOLDER.name, *asked, *options]\n'
        "    main()\n\n\n"
        'if __name__ == "__main__":\n    accuracy(sys.argv[1:])\n'
    )


def _performance(name: str, native: str, target: float | None) -> str:
    return (
        f'"""Is {name} faster than its baseline? Both are verified first, then timed in turns.\n\n'
        f"    python {name}_performance.py --dtype float32 --budget 2\n\n"
        "takes the options of `opforge compare`. On a CPU Triton is interpreted and never timed: the C++ kernel takes\n"
        "its place there, and the first line says so. The last line says whether TARGET is reached; exit code 1 where\n"
        'it is not.\n"""\n\nimport sys\nfrom pathlib import Path\n\nimport torch\n\n'
        f"import {name}_baseline\nimport {name}_triton\n\n"
        "from opforge.cli.folder_files import performance as measured\n\nFOLDER = Path(__file__).resolve().parent\n"
        f'ON_A_CPU = "{native}"\n'
        "# times as fast as the baseline; `opforge optimize` ends there\n"
        f"TARGET: float | None = {target!r}\n\n\n"
        "def performance(options: list[str]) -> int:\n"
        '    """Compare, print a sentence for each workload and dtype, and what became of the target."""\n'
        f"    candidate = {name}_triton.KERNEL if torch.accelerator.is_available() else ON_A_CPU\n"
        f'    sides = [f"{{FOLDER.name}}:{{kernel}}" for kernel in (candidate, {name}_baseline.KERNEL)]\n'
        '    print(f"{sides[0]} against {sides[1]}", flush=True)\n'
        "    return measured(FOLDER.parent, sides[0], sides[1], TARGET, options)\n\n\n"
        'if __name__ == "__main__":\n    sys.exit(performance(sys.argv[1:]))\n'
    )


def _test(name: str) -> str:
    return (
        f'"""Accuracy of {name}, then its performance, then PASSED or NOT PASSED with an exit code.\n\n'
        f"    python {name}_test.py --dtype float32\n\n"
        "takes the options that `opforge verify` and `opforge compare` have in common.\n"
        '"""\n\nimport sys\nfrom pathlib import Path\n\nfrom opforge.cli.folder_files import tested\n\n'
        'if __name__ == "__main__":\n    sys.exit(tested(Path(__file__).resolve().parent, sys.argv[1:]))\n'
    )
