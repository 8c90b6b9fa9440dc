"""docs/map.md from the code: rooms with their modules, device code, operators with their kernels, tests and scripts.

Every line is made from the first sentence of a docstring or of a file's first comment. A module that is hard to find on
the map needs a better first sentence. `make map` writes the page; git does not keep it, since every change of the code
changes it.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src" / "opforge"
HEADERS = SOURCE / "device" / "include" / "opforge"
sys.path[:0] = [str(ROOT / "tests")]

from test_arrows import FLOORS, arrows  # noqa: E402  the test draws them; the page shows what it drew

FOLDERS = {
    "": "what a kernel file includes first: `device.h` (.cu) or `host.h` (.cpp); and old names of headers that moved",
    "abi": "between Python and a kernel: checks of arguments, calls, the loop that samples are taken in",
    "arch": "instructions of one architecture: Hopper, tensor cores, clusters, barriers, vector registers of a CPU",
    "attention": "attention: what a query sees, blocks of queries against blocks of keys",
    "conv": "convolution: to come",
    "elementwise": "one result for each element, with or without a broadcast",
    "emulator": "CUDA on a CPU: the execution model, and headers in place of the CUDA toolkit's",
    "gemm": "products of matrices: tiles, epilogues, linear layers, FP8 scales",
    "gemm/wgmma": "the product on Hopper: producer, consumer, tile scheduler, pipeline, store",
    "layout": "data moved, not computed with",
    "loss": "cross-entropy and its targets",
    "norm": "layer norm and RMS norm, forward and backward",
    "numeric": "number formats, mathematical functions, random numbers",
    "rows": "kernels that work row by row: one header for each way in which a row is kept",
}
"""What each folder of headers holds."""

FAMILIES = {
    "attention": "attention",
    "conv": "convolution",
    "elementwise": "one result for each element",
    "gemm": "products of matrices and linear layers",
    "layout": "the same values in another order",
    "loss": "losses",
    "norm": "normalised rows",
    "quantize": "conversion to 8 bits",
    "rows": "reductions over rows, softmax",
}
"""What each family of operators computes."""

NAMING = (
    ("`op.py`", "the definition: reference, cases, workloads, cost, list of implementations"),
    ("`torch_eager.py`", "what a PyTorch user calls: the baseline; torch.compile is timed from the same file"),
    ("`torch_definition.py`", "the mathematics spelled out in PyTorch: what a user writes where torch has no function"),
    ("`library_*.py`", "another library's function, to be compared with"),
    ("`triton_*.py`", "a Triton kernel; `triton_gluon.py`: Gluon"),
    ("`tilelang_*.py`", "a TileLang program, for CUDA and for the C target"),
    ("`cuda_*.cu`", "CUDA C++"),
    ("`cpp_*.cpp`", "C++ for the CPU"),
    ("`tuned/<device>.json`", "configs that `opforge tune` chose"),
)
"""The files of an operator's folder; what follows the backend is the idea."""

TO_COME = (
    (
        "attention",
        "`ops/attention/<op>/`; shared device code in `device/include/opforge/attention/`",
        "attention's gradients, decoding, varlen, paged caches",
    ),
    (
        "convolution",
        "`ops/conv/<op>/`; shared device code in `device/include/opforge/conv/`",
        "convolutions as implicit products, depthwise, transposed",
    ),
    (
        "forge",
        "`forge/`, below `cli`, above the room that tries candidates",
        "a beam of several kernels in the loop; today it makes the folder, and one kernel faster in rounds",
    ),
    ("fleet", "`fleet/`, beside `forge`", "several machines as hosts of workers"),
    (
        "dashboard",
        "`serve/`, beside `cli`",
        "records, reports and histories in a browser; like `cli` it reads from the rooms below and adds nothing",
    ),
)
"""What the design has a place for: its name, where it will live, and what it will be."""


@cache
def tracked() -> frozenset[Path]:
    """The files that belong to the tree: those that git knows, and new ones that it doesn't ignore."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    return frozenset(path for name in listed.splitlines() if (path := ROOT / name).exists())


def first_sentence(text: str) -> str:
    """The first sentence of a text, on one line, without its full stop.

    >>> first_sentence("What moves: one\\nrow. The rest, e.g. this, follows.")
    'What moves: one row'
    """
    paragraph = " ".join(text.strip().split("\n\n")[0].split())
    return re.split(r"(?<=[^.][\w)`\"'])\.(?:\s+(?=[A-Z`])|$)", paragraph, maxsplit=1)[0]


def ended(sentence: str) -> str:
    """A sentence with the full stop that `first_sentence` took, where it has no other end."""
    return sentence if sentence.endswith((".", "?", "!", "…")) else f"{sentence}."


def about_room(room: Path) -> str:
    """The first paragraph of a room's docstring."""
    text = ast.get_docstring(ast.parse((room / "__init__.py").read_text(encoding="utf-8"))) or ""
    return " ".join(text.split("\n\n")[0].split())


def about_python(path: Path) -> str:
    """The first sentence of a module's docstring."""
    return first_sentence(ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or "")


def about_native(path: Path) -> str:
    """The first sentence of the comment that a C++ or CUDA file begins with, without the file's own name."""
    lines = []
    for line in path.read_text(encoding="utf-8").splitlines():
        if not line.startswith("//") or not line.strip("/ "):
            break
        lines.append(line.removeprefix("//").strip())
    return first_sentence(re.sub(r"^opforge/\S+ - ", "", "\n".join(lines)))


def about(path: Path) -> str:
    """What a file says of itself first."""
    said = (about_python if path.suffix == ".py" else about_native)(path)
    if not said:
        raise SystemExit(f"{path.relative_to(ROOT)} doesn't say what it is for: begin it with a sentence that does.")
    return said


def names_of(path: Path, most: int = 8) -> list[str]:
    """The public functions and classes of a module, in order; a class with its first public methods behind it."""
    names = []
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not node.name.startswith("_"):
            names.append(f"`{node.name}`")
        elif isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            methods = [
                f"`{each.name}`"
                for each in node.body
                if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef) and not each.name.startswith("_")
            ]
            shown = ", ".join(methods[:most]) + (" …" if len(methods) > most else "")
            names.append(f"`{node.name}`" + (f" ({shown})" if methods else ""))
    return names


def native_names(path: Path) -> list[str]:
    """The types and functions that a header defines outside anything else, in order, each once."""
    names = []
    for line in path.read_text(encoding="utf-8").splitlines():
        if named := re.match(r"(?:struct|class|enum class)\s+(?:alignas\(\w+\)\s+)?(\w+)[^;]*$", line):
            names.append(named[1])
        elif not re.match(r"(?:return|if|for|while|using|static_assert|template|namespace|typedef|else|#|/)", line):
            named = re.match(r"[A-Za-z_][\w:<>,&* ]*?[\s&*](\w+)\(", line)
            if named and not named[1].isupper() and named[1] not in ("decltype", "alignas", "__launch_bounds__"):
                names.append(named[1])
    return [f"`{name}`" for name in dict.fromkeys(names)]


def shortened(names: list[str], most: int) -> str:
    """The first names."""
    return ", ".join(names[:most]) + (" …" if len(names) > most else "")


def module_line(path: Path, base: Path, most: int = 12) -> str:
    """A module, what it is for, and the first public names in it."""
    shown = shortened(names_of(path), most)
    name = path.relative_to(base).with_suffix("").as_posix()
    return f"- **`{name}`** {ended(about(path))}" + (f" {shown}" if shown else "")


def rooms() -> dict[str, Path]:
    """The rooms that exist, by name."""
    return {
        path.name: path
        for path in SOURCE.iterdir()
        if path.is_dir() and (path / "__init__.py").exists() and path.name in FLOORS
    }


def modules_of(room: Path) -> list[Path]:
    """A room's modules; of `ops` its front alone, since operators have a section of their own."""
    found = sorted(path for path in room.rglob("*.py") if path in tracked())
    return [path for path in found if room.name != "ops" or path.parent == room]


def room_section(name: str, room: Path) -> list[str]:
    """A room: what it is, and its modules by folder."""
    lines = [f"### {name}", "", f"Floor {FLOORS[name]}. {about_room(room)}", ""]
    by_folder: dict[Path, list[Path]] = defaultdict(list)
    for path in modules_of(room):
        by_folder[path.parent].append(path)
    for folder in sorted(by_folder):
        if folder != room:
            lines += ["", f"`{folder.relative_to(SOURCE).as_posix()}/`: {about(folder / '__init__.py')}", ""]
        lines += [module_line(path, SOURCE) for path in by_folder[folder] if path.name != "__init__.py"]
    others = sorted({path.parent for path in room.rglob("*") if path in tracked()} - set(by_folder))
    if name not in ("device", "ops"):
        for folder in others:
            files = ", ".join(f"`{path.name}`" for path in sorted(folder.iterdir()) if path in tracked())
            lines.append(f"- **`{folder.relative_to(SOURCE).as_posix()}/`** {files}")
    return [*lines, ""]


def header_section() -> list[str]:
    """The headers, folder by folder; names that only lead on to another header are counted, not listed."""
    by_folder: dict[str, list[Path]] = defaultdict(list)
    for path in sorted(path for path in HEADERS.rglob("*") if path in tracked()):
        folder = path.parent.relative_to(HEADERS).as_posix()
        by_folder["" if folder == "." else folder].append(path)
    lines = ["## Headers: `device/include/opforge/`", "", "C++ and CUDA files include these.", ""]
    for folder in sorted(by_folder):
        if folder not in FOLDERS:
            raise SystemExit(f"{HEADERS.relative_to(ROOT)}/{folder} is new: say in FOLDERS what it holds.")
        lines += [f"`{folder + '/' if folder else '(top)'}`: {FOLDERS[folder]}", ""]
        moved = []
        for path in by_folder[folder]:
            if " lay before: " in (said := about(path)):
                moved.append(f"`{path.name}`")
            else:
                names = shortened(native_names(path), 16)
                lines.append(f"- **`{path.relative_to(HEADERS).as_posix()}`** {ended(said)} {names}".rstrip())
        lines += [f"- moved, kept under the old name: {', '.join(moved)}"] if moved else []
        lines.append("")
    return lines


def operator_section() -> list[str]:
    """The families with their operators, and the kernels of each with their idea."""
    lines = ["## Operators: `ops/<family>/<operator>/`", "", "| file | what |", "|---|---|"]
    lines += [f"| {name} | {what} |" for name, what in NAMING]
    lines += [
        "",
        "What follows the backend in a file's name is its idea: `cuda_onchip.cu`. A hash covers each kernel.",
        "",
    ]
    families: dict[str, list[Path]] = defaultdict(list)
    for path in sorted(path for path in (SOURCE / "ops").rglob("op.py") if path in tracked()):
        families[path.parent.parent.name].append(path.parent)
    for family, operators in families.items():
        names = ", ".join(
            f"[{folder.name}](../{folder.relative_to(ROOT).as_posix()}/README.md)" for folder in operators
        )
        lines += [f"### ops/{family}: {FAMILIES[family]}", "", names + ".", ""]
        lines += ["<details><summary>each kernel and its idea</summary>", ""]
        for folder in operators:
            lines += [f"**{folder.name}** {about(folder / 'op.py')}", ""]
            kernels = [path for path in kernel_files(folder) if path.name not in ("op.py", "torch_eager.py")]
            lines += [f"- `{path.name}` {ended(about(path))} {kernel_names(path)}".rstrip() for path in kernels]
            lines.append("")
        lines += ["</details>", ""]
    return lines


def kernel_names(path: Path) -> str:
    """The functions of a kernel file, those left out that every such file has."""
    names = names_of(path) if path.suffix == ".py" else native_names(path)
    return shortened(
        [name for name in names if name.strip("`") not in ("run", "launch", "program", path.parent.name)], 6
    )


def kernel_files(folder: Path) -> Iterable[Path]:
    """The source files of an operator's folder."""
    return sorted(path for path in folder.iterdir() if path in tracked() and path.suffix in (".py", ".cu", ".cpp"))


def listing(title: str, what: str, folder: Path, pattern: str = "*.py") -> list[str]:
    """A section with a line for each file of a folder."""
    lines = [f"## {title}", "", what, ""]
    for path in sorted(path for path in folder.glob(pattern) if path in tracked() and path.name != "__init__.py"):
        lines.append(f"- **`{path.name}`** {about(path)}")
    return [*lines, ""]


def arrow_section(found: dict[str, Path]) -> list[str]:
    """The floors and the imports between rooms, as a picture."""
    drawn: dict[str, set[str]] = defaultdict(set)
    for room, target, _ in arrows():
        drawn[room].add(target)
    lines = ["## Who imports whom", "", "`tests/test_arrows.py` fails on an arrow that points up or sideways."]
    lines += ["", "```mermaid", "graph TD"]
    for floor in sorted({FLOORS[room] for room in found}, reverse=True):
        lines.append(f"  subgraph floor{floor}[floor {floor}]")
        lines += [f"    {room}" for room in sorted(found) if FLOORS[room] == floor]
        lines.append("  end")
    for room in sorted(drawn):
        lines += [f"  {room} --> {target}" for target in sorted(drawn[room])]
    return [*lines, "```", ""]


def map_page() -> str:
    """docs/map.md."""
    found = rooms()
    ordered = sorted(found, key=lambda room: (-FLOORS[room], room))
    lines = [
        "# The map",
        "",
        "Where things live. Made by `make docs` from the imports and from what each file says of itself first.",
        "A room is a folder of `src/opforge/`. It imports floors below its own only. "
        "How well readers find things by this page: [house.md](house.md).",
        "",
        "| floor | room | what it is | modules | lines |",
        "|---|---|---|---|---|",
    ]
    for room in ordered:
        files = modules_of(found[room])
        total = sum(len(path.read_text(encoding="utf-8").splitlines()) for path in files)
        lines.append(f"| {FLOORS[room]} | [`{room}`](#{room}) | {about_room(found[room])} | {len(files)} | {total} |")
    lines += [
        "",
        "Then [headers](#headers-deviceincludeopforge), [operators](#operators-opsfamilyoperator), [tests](#tests), "
        "[scripts](#scripts), [who imports whom](#who-imports-whom).",
        "",
        "## Where what is to come will live",
        "",
        "| what | where | what it will be |",
        "|---|---|---|",
    ]
    lines += [f"| {what} | {where} | {said} |" for what, where, said in TO_COME]
    lines += ["", "## Rooms", "", "A line a module: its path, what it is for, and the first of its public names.", ""]
    for room in ordered:
        lines += room_section(room, found[room])
    lines += header_section()
    lines += operator_section()
    lines += listing(
        "Tests", "One file a subject; `make test` runs them, `make campaigns` the long ones.", ROOT / "tests"
    )
    lines += listing(
        "The red team: `tests/redteam/`",
        "Cheats, bugs and hostile kernels against the verifier: `make redteam`. Its kernels lie in `home*/`.",
        ROOT / "tests" / "redteam",
    )
    lines += listing("Scripts", "What developers run; users have verbs.", ROOT / "scripts")
    lines += arrow_section(found)
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).rstrip() + "\n"


if __name__ == "__main__":
    (ROOT / "docs" / "map.md").write_text(map_page(), encoding="utf-8")
    print("wrote docs/map.md")
