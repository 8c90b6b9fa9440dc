"""Evidence outlives edits that change nothing: ten of them over all backends; and ten real changes are each noticed."""

import re
import shutil

import pytest

from opforge.backends.program_hash import joined_tokens, program_sha256
from opforge.backends.renamed import renamed_program
from opforge.backends.shared_code import source_sha256
from opforge.inspect.compiled import CompiledCall, compiled, first_difference
from opforge.registry import find_operator, load
from opforge.registry.implementation_files import PACKAGE, read_implementation

KERNELS = {
    "torch": ("rmsnorm", "torch_eager"),
    "triton": ("softmax", "triton_onepass"),
    "tilelang": ("softmax", "tilelang_onepass"),
    "cuda": ("vector_add", "cuda_vectors"),
    "cpp": ("softmax", "cpp_twopass"),
}


@pytest.fixture
def copied(tmp_path):
    """A backend's kernel in a copy of the package, where it and what it shares may be edited: the implementation as it
    is there now.
    """

    def copy(backend):
        operator, name = KERNELS[backend]
        package = tmp_path / "package"
        if not package.exists():
            shutil.copytree(PACKAGE / "device", package / "device")
            shutil.copytree(find_operator(PACKAGE / "ops", operator), package / "ops" / operator)
        return read_implementation(operator, package / "ops" / operator, name)

    return copy


def edit(implementation, change, name=""):
    """The implementation after a change of its text."""
    text = implementation.source.read_text()
    changed = change(text)
    assert changed != text, "the edit must change something"
    implementation.source.write_text(changed)
    return read_implementation(implementation.operator, implementation.source.parent, name or implementation.name)


def moved(implementation):
    """In another folder of the package, under another name."""
    folder = implementation.source.parent.with_name("elsewhere")
    implementation.source.parent.rename(folder)
    there = folder / implementation.source.name
    name = f"{implementation.name}_moved"
    there.rename(folder / f"{name}{there.suffix}")
    return read_implementation(implementation.operator, folder, name)


def shared(implementation, change):
    """After a change of the first file that it shares with others."""
    package = next(place for place in implementation.source.parents if place.name == "package")
    python = implementation.source.suffix == ".py"
    reached = re.search(
        r"from opforge\.([\w.]+) import" if python else r'#include "([\w./]+)"', implementation.source.read_text()
    )[1]
    path = package / (reached.replace(".", "/") + ".py") if python else package / "device" / "include" / reached
    path.write_text(change(path.read_text()))
    return read_implementation(implementation.operator, implementation.source.parent, implementation.name)


def folders_moved(implementation):
    """The package as it was before: headers in include, modules in primitives, one folder for all of a kind."""
    package = next(place for place in implementation.source.parents if place.name == "package")
    (package / "device" / "include").rename(package / "include")
    (package / "device").rename(package / "primitives")
    headers = package / "include" / "opforge"
    names = {
        str(path.relative_to(headers)): str(path.relative_to(headers)).replace("/", "_")
        for path in headers.glob("*/*.h")
        if path.parent.name != "emulator"
    }
    modules = {
        f"opforge.device.{path.parent.name}.{path.stem}": f"opforge.primitives.{path.parent.name}_{path.stem}"
        for path in (package / "primitives").glob("*/*.py")
    }
    for old, new in names.items():
        (headers / old).rename(headers / new)
    for path in (package / "primitives").glob("*/*.py"):
        path.rename(package / "primitives" / f"{path.parent.name}_{path.name}")
    for path in (*headers.rglob("*.h"), *(package / "primitives").glob("*.py"), implementation.source):
        text = path.read_text()
        for old, new in names.items():
            text = text.replace(f'"opforge/{old}"', f'"opforge/{new}"')
        for old, new in modules.items():
            text = text.replace(f"from {old} import", f"from {new} import")
        path.write_text(text)
    return read_implementation(implementation.operator, implementation.source.parent, implementation.name)


def renamed(pairs):
    def change(text):
        for old, new in pairs:
            text = re.sub(rf"\b{re.escape(old)}\b", new, text)
        return text

    return change


PYTHON = {
    "a comment": lambda item: edit(item, lambda text: text + "\n# nothing but words\n"),
    "the docstring": lambda item: edit(item, lambda text: text.replace('"""', '"""Another first line. ', 1)),
    "formatting": lambda item: edit(item, lambda text: text.replace("(x, ", "(\n    x,\n    ")),
    "the order of imports": lambda item: edit(item, _imports_turned),
    "an unused helper": lambda item: edit(item, lambda text: text + "\n\ndef nobody_calls_me(a):\n    return a + 1\n"),
    "moved": moved,
    "a shared file's opening line": lambda item: shared(item, lambda text: text.replace('"""', '"""More words. ', 1)),
    "a shared file's unused helper": lambda item: shared(
        item, lambda text: text + "\n\ndef nobody_calls_me(a):\n    return a + 1\n"
    ),
}

NATIVE = {
    "a comment": lambda item: edit(item, lambda text: text.replace("\n\n", "\n\n// nothing but words\n", 1)),
    "formatting": lambda item: edit(item, lambda text: text.replace(", ", ",\n        ").replace("#define", "#define")),
    "moved": moved,
    "a header's opening line": lambda item: shared(item, lambda text: "// More words.\n" + text),
}

LOCALS = {
    "torch": (),
    "triton": (("numerator", "powers"), ("softmax_rows", "rows_of_softmax"), ("inside", "within")),
    "tilelang": (("part_top", "peak_here"), ("softmax_blocks", "blocks_of_softmax")),
    "cuda": (("VectorAdd", "Sum"),),
    "cpp": (("softmax_rows", "rows_of_softmax"),),
}


def _imports_turned(text):
    lines = text.split("\n")
    places = [place for place, line in enumerate(lines) if re.match(r"(import|from) ", line)]
    for place, line in zip(places, [lines[place] for place in reversed(places)], strict=True):
        lines[place] = line
    if len(places) == 1:
        lines.insert(places[0], "import math")
    return "\n".join(lines)


@pytest.mark.parametrize("backend", ["torch", "triton", "tilelang"])
def test_edits_that_change_nothing_leave_a_python_program_as_it_is(backend, copied, tmp_path):
    """One after the other, each on top of those before: nothing has to be compiled to know it."""
    item = copied(backend)
    before, source = program_sha256(item), source_sha256(item.source)
    edits = dict(PYTHON)
    if LOCALS[backend]:
        edits["names of functions and locals"] = lambda item: edit(item, renamed(LOCALS[backend]))
    if "opforge.device" not in item.source.read_text():
        edits = {name: change for name, change in edits.items() if "shared" not in name}
    if not re.search(r"\(x, ", item.source.read_text()):
        edits.pop("formatting")
    moving = edits.pop("moved")
    for name, change in {**edits, "moved": moving, "the package's own folders moved": folders_moved}.items():
        item = change(item)
        assert program_sha256(item) == before, name
    assert source_sha256(item.source) != source


@pytest.mark.parametrize("backend", ["cuda", "cpp"])
def test_edits_that_change_nothing_leave_a_native_program_as_it_is(backend, copied):
    item = copied(backend)
    before = program_sha256(item)
    for name, change in {**NATIVE, "the package's own folders moved": folders_moved}.items():
        if name == "formatting":
            continue
        item = change(item)
        assert program_sha256(item) == before, name


def test_a_header_that_is_split_says_the_same(tmp_path):
    """Its guards and namespaces are no code; what moves to another namespace, or is guarded by something else, is."""

    def tokens_of(name, **headers):
        (tmp_path / name).mkdir()
        for header, body in headers.items():
            text = f"#ifndef {header.upper()}_H_\n#define {header.upper()}_H_\n{body}\n#endif  // {header.upper()}_H_\n"
            (tmp_path / name / f"{header}.h").write_text(text)
        (tmp_path / name / "cpp_x.cpp").write_text('#include "whole.h"\nint main() { return a::b::two(); }\n')
        return joined_tokens(tmp_path / name / "cpp_x.cpp")

    one, two = "int one() { return 1; }", "int two() { return 2 * one(); }"
    within = "namespace a {{\nnamespace b {{\n{}\n}}  // namespace b\n}}  // namespace a".format
    whole = tokens_of("whole", whole=within(f"{one}\n{two}"))
    assert tokens_of("split", part=within(one), whole='#include "part.h"\n' + within(two)) == whole
    assert tokens_of("changed", part=within(one.replace("1", "3")), whole='#include "part.h"\n' + within(two)) != whole
    assert (
        tokens_of(
            "elsewhere",
            part=within(one).replace("namespace b", "namespace c"),
            whole='#include "part.h"\n' + within(two),
        )
        != whole
    )
    assert (
        tokens_of("guarded", part=within(f"#ifdef FAST\n{one}\n#endif"), whole='#include "part.h"\n' + within(two))
        != whole
    )


RENAMINGS = {
    "a functor and a parameter": ((("VectorAdd", "Sum"), ("addend", "summand")), True),
    "two names become one": ((("left", "right"),), False),
    "two names change places": ((("left", "swap"), ("right", "left"), ("swap", "right")), True),
    "another function from outside": ((("fmaf", "fmaxf"),), False),
    "a name that a header from outside has": ((("addend", "hypot"),), False),
    "what is exported": ((("run", "go"),), False),
    "a tunable": ((("UNROLL", "UNROLLED"),), False),
    "a word of a pragma": ((("unroll", "nounroll"),), False),
    "what is pasted": ((("paste_", "glue_"),), False),
    "a number": ((("2", "3"),), False),
}
SELF_NAMED = """
#include <cmath>
/* opforge
space = {{UNROLL = [1, 2]}}
default = {{UNROLL = 2}}
*/
#ifndef UNROLL
#define UNROLL 2
#endif
#define PASTED(x) paste_##x
struct VectorAdd {{
  float addend;
  float operator()(float left, float right) const {{ return fmaf(left, 2, right * addend); }}
}};
float paste_1(float given) {{
#pragma GCC unroll UNROLL
  for (int i = 0; i < 4; ++i) given = VectorAdd{{given}}(given, PASTED(2)); // {comment}
  return given;
}}
OPFORGE_EXPORT(run, paste_1)
"""


@pytest.mark.parametrize("name", RENAMINGS)
def test_a_renaming_is_seen_as_one_without_compiling(name, tmp_path):
    """Names that a file gave itself do not count; whatever means something outside it, or merges two names, does."""
    pairs, alike = RENAMINGS[name]

    def written(folder, change):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "cpp_x.cpp").write_text(change(SELF_NAMED.format(comment=folder)))
        return read_implementation("x", tmp_path / folder, "cpp_x")

    old, now = written("old", str), written("now", renamed(pairs))
    assert program_sha256(old) != program_sha256(now)
    assert renamed_program(old, now) == alike


CHANGES = {
    "masked load's other": ("triton", lambda text: text.replace('-float("inf")', "0.0")),
    "a rounding": ("triton", lambda text: text.replace("tl.exp2(", "tl.exp(")),
    "num_warps": ("triton", lambda text: text.replace("**config)", "**{**config, 'num_warps': 2})")),
    "a grid": ("triton", lambda text: text.replace("softmax_rows[grid]", "softmax_rows[(grid[0] + 1,)]")),
    "a default config": ("triton", lambda text: text.replace('"tile": 2048', '"tile": 4096')),
    "eps": ("torch", lambda text: text.replace("weight, eps)\n", "weight, 2 * eps)\n")),
    "a bound of a loop": (
        "tilelang",
        lambda text: text.replace("T.serial(T.ceildiv(cols, width))", "T.serial(cols // width)"),
    ),
    "threads of a launch": (
        "tilelang",
        lambda text: text.replace("threads=tiles.threads", "threads=2 * tiles.threads"),
    ),
    "flags": (
        "cpp",
        lambda text: (
            text.replace("/* opforge\n", '/* opforge\nflags = ["-ffast-math"]\n')
            if "/* opforge\n" in text
            else '/* opforge\nflags = ["-ffast-math"]\n*/\n' + text
        ),
    ),
    "a constant": (
        "cpp",
        lambda text: re.sub(r"-INFINITY|-std::numeric_limits<float>::infinity\(\)|1\.0f", "-1.0f", text, count=1),
    ),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_real_change_is_noticed(name, copied):
    """Each is the program's, whatever a compiler makes of it."""
    backend, change = CHANGES[name]
    item = copied(backend)
    before = program_sha256(item)
    assert program_sha256(edit(item, change)) != before


def host_point(item, dtype="float32"):
    return CompiledCall(operator=item.operator, dtype=dtype, axes={}, scalars={}, config=item.default, target="host")


def test_one_object_code_is_seen_through_new_names_order_and_helpers(copied):
    """What the program's hash does not see: the compiler's result is compared, without names, lines and what nobody
    calls.
    """
    item = copied("cpp")
    registry = load()
    before, program = compiled(registry, item, host_point(item)), program_sha256(item)
    renames = edit(item, renamed(LOCALS["cpp"]))
    helper = edit(
        renames,
        lambda text: text.replace("namespace {", "int nobody_calls_me(int a) { return 3 * a; }\n\nnamespace {", 1),
    )
    assert program_sha256(helper) != program
    after = compiled(registry, moved(helper), host_point(item))
    assert first_difference(before, after) == "" and before.sha256 == after.sha256


@pytest.mark.campaign
def test_the_first_differing_instruction_is_shown(copied):
    """A constant of a host's code, by the function that it lies in."""
    item = copied("cpp")
    registry = load()
    before = compiled(registry, item, host_point(item))
    after = compiled(registry, edit(item, lambda text: text.replace("1.0f /", "1.25f /")), host_point(item))
    assert "instruction" in first_difference(before, after) or "constants differ" in first_difference(before, after)


@pytest.mark.parametrize(
    "real",
    [
        pytest.param(("a rounding", "num_warps"), marks=pytest.mark.campaign),
        pytest.param(("masked load's other", "a grid"), marks=pytest.mark.slow),
    ],
)
def test_sass_of_triton_is_seen_through_names_of_parameters(copied, real):
    """A kernel's parameters are names of calls: the program differs, its code does not. What the mask gives and a grid
    are real changes.
    """
    item, registry = copied("triton"), load()
    where = CompiledCall(
        operator="softmax",
        dtype="float32",
        axes={"lead": (64,), "cols": 1000},
        scalars={},
        config=item.default,
        target="sm_90a",
    )
    before = compiled(registry, item, where)
    text = item.source.read_text()
    after = compiled(registry, edit(item, renamed((("x_ptr", "source_ptr"),))), where)
    assert first_difference(before, after) == ""
    item.source.write_text(text)
    for name in real:
        changed = edit(item, CHANGES[name][1])
        assert first_difference(before, compiled(registry, changed, where)), name
        item.source.write_text(text)


@pytest.mark.campaign
def test_sass_of_cuda_is_seen_through_names_and_not_through_arithmetic(copied):
    """With nvcc, for a target that is not here."""
    if shutil.which("nvcc") is None:
        pytest.skip("nvcc is not on PATH")
    item, registry = copied("cuda"), load()
    where = CompiledCall(
        operator="vector_add", dtype="float32", axes={}, scalars={}, config=item.default, target="sm_90a"
    )
    before = compiled(registry, item, where)
    text = item.source.read_text()
    helper = edit(item, lambda text: text + "\n__global__ void nobody_launches_me(float* x) { *x = 1; }\n")
    assert first_difference(before, compiled(registry, moved(helper), where)) == ""
    item.source.parent.mkdir(parents=True)
    item.source.write_text(text)
    changed = edit(item, lambda text: text.replace("a + b", "a - b"))
    assert "instruction" in first_difference(before, compiled(registry, changed, where))
