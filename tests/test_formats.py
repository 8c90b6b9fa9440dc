"""Documents of flashinfer-trace, SOL-ExecBench and BackendBench: read and written again they are the same; what is
wrong in them is said with its file and its place.
"""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from opforge.core.language.errors import UsageError
from opforge.forge.suites.formats.call_lines import (
    DTYPES as SHORT,
    Call,
    CallFile,
    OperatorCalls,
    Symbol,
    TensorArgument,
    arguments_in,
    arguments_text,
    calls_in,
    folder_of,
    operator_of,
    read_calls,
)
from opforge.forge.suites.formats.documents import At, dumped, loaded
from opforge.forge.suites.formats.files import files_of_task, form_of, json_text, read_each, read_one, task_sets
from opforge.forge.suites.formats.nouns import DTYPES, FLASHINFER, LANGUAGES, SOL, Definition, Solution, Trace, Workload

FILES = settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
NAMES = st.from_regex(r"[a-z][a-z0-9_]{0,8}", fullmatch=True)
WORDS = st.text(st.characters(codec="utf-8"), min_size=1, max_size=12)
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
MORE = st.dictionaries(st.from_regex(r"x_[a-z]{1,4}", fullmatch=True), ANYTHING, max_size=2)


@st.composite
def objects(draw, needed, optional, nullable=()):
    """An object with all that is needed, some of the rest, what nobody knows, in any order."""
    made = {key: draw(value) for key, value in needed.items()}
    for key, value in optional.items():
        if draw(st.booleans()):
            made[key] = None if key in nullable and draw(st.booleans()) else draw(value)
    made |= draw(MORE)
    return {key: made[key] for key in draw(st.permutations(list(made)))}


ABOUT = {"description": WORDS}
AXES = {
    "const": objects({"type": st.just("const"), "value": st.integers(0, 2**40)}, ABOUT, ABOUT),
    "var": objects({"type": st.just("var")}, ABOUT, ABOUT),
    "expr": objects({"type": st.just("expr"), "expression": st.just("n * 2")}, ABOUT, ABOUT),
}
REFERENCES = st.sampled_from(
    [
        "def run(x):\n    return x\n",
        "import torch\n\n@torch.no_grad()\ndef run(x):\n    return x + 1\n\ndef make():\n    pass",
    ]
)


@st.composite
def definitions(draw, form):
    axes = draw(st.dictionaries(NAMES, AXES["const"] | AXES["var"], min_size=1, max_size=3))
    known = sorted(axes)
    if form == SOL:
        axes |= draw(st.dictionaries(st.just("doubled"), AXES["expr"]))
        known += ["16"]
    shape = st.none() | st.lists(st.sampled_from(known), max_size=3)
    tensor = objects({"shape": shape, "dtype": st.sampled_from(DTYPES)}, ABOUT, ABOUT)
    needed = {
        "name": NAMES,
        "axes": st.just(axes),
        "inputs": st.dictionaries(NAMES.map("in_{}".format), tensor, max_size=3),
        "outputs": st.dictionaries(NAMES.map("out_{}".format), tensor, min_size=1, max_size=2),
        "reference": REFERENCES,
    }
    optional = ABOUT | {"tags": st.lists(WORDS, max_size=2), "constraints": st.lists(st.just("n % 4 == 0"), max_size=2)}
    if form == FLASHINFER:
        return draw(objects(needed | {"op_type": NAMES}, optional, {"description"}))
    optional |= {"op_type": NAMES, "hf_id": WORDS, "custom_inputs_entrypoint": st.just("run")}
    return draw(objects(needed, optional, {"description", "op_type", "hf_id", "custom_inputs_entrypoint"}))


def workloads(form):
    random = objects({"type": st.just("random")}, {})
    scalar = objects({"type": st.just("scalar"), "value": st.integers() | st.floats(-1e9, 1e9) | st.booleans()}, {})
    stored = objects({"type": st.just("safetensors"), "path": WORDS, "tensor_key": WORDS}, {})
    inputs = st.dictionaries(NAMES, random | scalar | stored, max_size=3)
    if form == SOL:
        inputs |= st.dictionaries(NAMES, objects({"type": st.just("custom")}, {}), max_size=2)
    needed = {"uuid": WORDS, "axes": st.dictionaries(NAMES, st.integers(0, 2**40), max_size=3), "inputs": inputs}
    number = st.floats(0, 10) | st.integers(0, 3)
    bounds = objects(
        {},
        {"max_atol": number, "max_rtol": number, "required_matched_ratio": number, "max_error_cap": number}
        | {"allow_negative_inf": st.booleans()},
        {"max_error_cap"},
    )
    return objects(needed, {"tolerance": bounds} if form == SOL else {})


@st.composite
def solutions(draw, form):
    files = draw(st.lists(NAMES.map("{}.py".format), min_size=1, max_size=3, unique=True))
    language = st.sampled_from(LANGUAGES[form])
    flags = st.lists(st.text(max_size=5), max_size=2)
    options = objects({}, {"cflags": flags, "cuda_cflags": flags, "ld_flags": flags})
    spec = objects(
        {"language": language} if form == FLASHINFER else {"languages": st.lists(language, min_size=1, max_size=2)},
        {},
    )
    rest = objects(
        {"target_hardware": st.lists(WORDS, min_size=1, max_size=2), "entry_point": st.just(f"{files[0]}::run")},
        {"dependencies": st.lists(WORDS, max_size=2), "destination_passing_style": st.booleans()}
        | {"binding": st.sampled_from(["tvm-ffi", "torch"])}
        | ({"compile_options": options} if form == SOL else {}),
        {"binding", "compile_options"},
    )
    sources = [draw(objects({"path": st.just(file), "content": WORDS}, {})) for file in files]
    return draw(
        objects(
            {
                "name": NAMES,
                "definition": NAMES,
                "author": WORDS,
                "spec": st.builds(lambda a, b: {**a, **b}, spec, rest),
            }
            | {"sources": st.just(sources)},
            ABOUT,
            ABOUT,
        )
    )


@st.composite
def traces(draw, form):
    status = draw(st.sampled_from(["PASSED", "INCORRECT_NUMERICAL", "RUNTIME_ERROR", "TIMEOUT"]))
    error = st.floats(0, 1e9) | st.sampled_from(["NaN", "Infinity", 0])
    correct = objects(
        {},
        {"max_relative_error": error, "max_absolute_error": error, "has_nan": st.booleans(), "extra": MORE},
        {"extra"},
    )
    time = st.floats(0, 1e6) | st.integers(0, 9)
    times = objects({}, {"latency_ms": time, "reference_latency_ms": time, "speedup_factor": time})
    evaluation = objects(
        {
            "status": st.just(status),
            "environment": objects({"hardware": WORDS}, {"libs": st.dictionaries(WORDS, WORDS, max_size=2)}),
            "timestamp": WORDS,
        }
        | ({"correctness": correct} if status in ("PASSED", "INCORRECT_NUMERICAL") else {})
        | ({"performance": times} if status == "PASSED" else {}),
        {"log": st.text(max_size=9)} | ({} if status == "PASSED" else {"performance": st.none()}),
    )
    return draw(
        objects(
            {"definition": NAMES, "workload": workloads(form)},
            {"solution": NAMES, "evaluation": evaluation},
            {"solution", "evaluation"},
        )
    )


def exact(value):
    """A value that 1, 1.0 and true do not share, with the order of keys."""
    if isinstance(value, dict):
        return [(key, exact(item)) for key, item in value.items()]
    if isinstance(value, list):
        return [exact(item) for item in value]
    return type(value).__name__, repr(value)


@pytest.mark.parametrize("count", [15, pytest.param(60, marks=pytest.mark.campaign)])
@pytest.mark.parametrize("form", [FLASHINFER, SOL])
@pytest.mark.parametrize(
    ("noun", "drawn"),
    [(Definition, definitions), (Workload, workloads), (Solution, solutions), (Trace, traces)],
    ids=["definition", "workload", "solution", "trace"],
)
def test_documents_are_written_as_they_were_read(form, noun, drawn, count, tmp_path):
    """Files of each kind and form: no key, no null, no order and no type of a number is lost."""
    path = tmp_path / "document.json"

    @settings(FILES, max_examples=count)
    @given(drawn(form))
    def round_trip(document):
        path.write_text(json.dumps(document))
        found = read_one(noun, path)
        assert exact(json.loads(json_text(found))) == exact(document)
        # what has been read, not what has been kept aside: a changed field is written
        if noun is not Workload and noun is not Trace:
            assert replace(found, name="renamed").document()["name"] == "renamed"

    round_trip()


TENSORS = st.builds(
    lambda shape, dtype, turned: TensorArgument(
        shape=tuple(shape), dtype=dtype, stride=tuple(range(len(shape))) if turned else None
    ),
    st.lists(st.integers(0, 10**6), max_size=4),
    st.sampled_from(list(SHORT.values())),
    st.booleans(),
)
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text(st.characters(codec="ascii", exclude_characters="\r\n"), max_size=5)
    | st.sampled_from(["torch.float16", "torch.strided", "torch.device('cuda')"]).map(lambda text: Symbol(text=text))
)
VALUES = TENSORS | SCALARS | st.lists(TENSORS | st.integers(), max_size=3)
ARGUMENTS = st.tuples(st.lists(VALUES, max_size=3).map(tuple), st.dictionaries(NAMES, VALUES, max_size=2))


@st.composite
def call_files(draw):
    other = st.sampled_from(["", "# of a model", "total: 3"])
    call = st.builds(
        lambda count, given: Call(count=count, args=given[0], kwargs=given[1]), st.integers(0, 10**6), ARGUMENTS
    )
    operator = st.builds(
        lambda name, entries: OperatorCalls(name=name, entries=tuple(entries)),
        st.from_regex(r"aten\.[a-z_]{1,6}(\.[A-Za-z_]{1,6})?", fullmatch=True),
        st.lists(call | other, max_size=4),
    )
    return CallFile(
        operators=tuple(draw(st.lists(operator, min_size=1, max_size=3))),
        before=tuple(draw(st.lists(other, max_size=1))),
        ended=draw(st.booleans()),
    )


@FILES
@given(call_files())
def test_files_of_calls_are_written_as_they_were_read(made):
    text = made.written()
    found = calls_in(text, "suite.txt")
    assert found.written() == text
    # and the values are those, not only the text
    for before, after in zip(made.operators, found.operators, strict=True):
        for call, again in zip(before.calls, after.calls, strict=True):
            assert exact_call(again) == exact_call(call)
            assert arguments_text(again.args, again.kwargs) == call.written()


def exact_call(call):
    return call.count, repr(call.args), repr(dict(call.kwargs))


def test_the_ways_in_which_people_write_calls():
    args, kwargs = arguments_in("((T([1, 2], f16), T([2], 'f32', [4])), {'dtype': torch.float16})", "s:1")
    assert args == (
        TensorArgument(shape=(1, 2), dtype="float16"),
        TensorArgument(shape=(2,), dtype="float32", stride=(4,)),
    )
    assert kwargs == {"dtype": Symbol(text="torch.float16")}
    quoted, named = arguments_in("\"((T([], bf16), -inf), {'device': \"torch.device('cpu')\"})\"", "s:1")
    assert quoted[1] == -math.inf
    assert named == {"device": Symbol(text="torch.device('cpu')")}
    for name in ("add.Tensor", "add_.Tensor", "_log_softmax.default", "nn.functional.relu", "relu_"):
        assert operator_of(folder_of(name)) == name
    # as BackendBench counts it: the text, then the operator's name
    one = calls_in("Operator: aten.relu.default\ncnt: 2, ((T([2], f32),), {})", "s").operators[0]
    assert one.calls[0].uuid(one.name) == hashlib.sha256(b"((T([2], f32),), {})aten.relu.default").hexdigest()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("cnt: 1, ((), {})", "s.txt:1: a call before any operator"),
        ("Operator:aten.add", "s.txt:1: .* names no operator"),
        ("Operator: aten.add.Tensor \n", "names no operator"),
        ("Operator: aten.a\ncnt: many, ((), {})", "s.txt:2: .* is no call"),
        ("Operator: aten.a\ncnt: 1, ((T([2, 3], f16), {})", "s.txt:2, column .*: no arguments"),
        ("Operator: aten.a\ncnt: 1, ((T([2], f17),), {})", r"s.txt:2, column 18: 'f17' is not a dtype"),
        ("Operator: aten.a\ncnt: 1, ((T([-2], f16),), {})", "a shape of sizes"),
        ("Operator: aten.a\ncnt: 1, ((T([2, 2], f16, [1]),), {})", "a stride for each dimension"),
        ("Operator: aten.a\ncnt: 1, ((__import__('os').system('ls'),), {})", "is not a tensor T"),
        ("Operator: aten.a\ncnt: 1, ((torch.load('x'),), {})", "is not a tensor T"),
        ("Operator: aten.a\ncnt: 1, (T([2], f16),)", "is not a pair"),
        ("Operator: aten.a\ncnt: 1, ([1], {})", "is not a tuple"),
        ("Operator: aten.a\ncnt: 1, ((), {1: 2})", "arguments by name"),
    ],
)
def test_calls_that_are_none_are_told_with_their_place(text, message):
    with pytest.raises(UsageError, match=message):
        calls_in(text, "s.txt")


GEMM = {
    "name": "gemm_n8_k4",
    "op_type": "gemm",
    "axes": {"M": {"type": "var"}, "N": {"type": "const", "value": 8}, "K": {"type": "const", "value": 4}},
    "inputs": {"A": {"shape": ["M", "K"], "dtype": "float16"}, "B": {"shape": ["N", "K"], "dtype": "float16"}},
    "outputs": {"C": {"shape": ["M", "N"], "dtype": "float16"}},
    "reference": "import torch\n\ndef run(A, B):\n    return torch.matmul(A, B.T)",
}
SOLVED = {
    "name": "mine",
    "definition": "gemm_n8_k4",
    "author": "a person",
    "spec": {"language": "python", "target_hardware": ["cpu"], "entry_point": "main.py::run"},
    "sources": [{"path": "main.py", "content": "def run(A, B, C): C[:] = A @ B.T"}],
}
SIZED = {"uuid": "u-1", "axes": {"M": 16}, "inputs": {"A": {"type": "random"}, "B": {"type": "random"}}}
TRACED = {"definition": "gemm_n8_k4", "solution": "mine", "workload": SIZED, "evaluation": None}


def changed(document, path, value):
    """A copy with something else at a path of keys; a value that is missing is taken out."""
    made = json.loads(json.dumps(document))
    *way, last = path
    place = made
    for key in way:
        place = place[key]
    if value is ...:
        del place[last]
    else:
        place[last] = value
    return made


@pytest.mark.parametrize(
    ("noun", "document", "path", "value", "message"),
    [
        (Definition, GEMM, ["name"], ..., r"d.json: \$.name must be there"),
        (Definition, GEMM, ["name"], "", r"\$.name must be text that is not empty, not ''"),
        (
            Definition,
            GEMM,
            ["axes", "M", "type"],
            "vary",
            r"\$.axes.M.type must be one of const, var, expr, not 'vary'",
        ),
        (Definition, GEMM, ["axes", "N", "value"], True, r"\$.axes.N.value must be a whole number from 0 on, not True"),
        (Definition, GEMM, ["axes", "N", "value"], 8.0, r"\$.axes.N.value must be a whole number"),
        (Definition, GEMM, ["inputs", "A", "shape", 1], "Q", r"\$.inputs.A.shape\[1\] must be an axis .*M, N, K.*'Q'"),
        (Definition, GEMM, ["inputs", "A", "dtype"], "half", r"\$.inputs.A.dtype must be one of .*'half'"),
        (Definition, GEMM, ["outputs", "A"], {"shape": [], "dtype": "int8"}, r"\$.outputs.A must be named otherwise"),
        (Definition, GEMM, ["reference"], "def walk(): pass", r"\$.reference must be Python with a function run"),
        (Definition, GEMM, ["reference"], "def run(:", r"\$.reference must be Python \(line 1"),
        (Definition, GEMM, ["constraints"], ["M +"], r"\$.constraints\[0\] must be an expression"),
        (Definition, GEMM, ["custom_inputs_entrypoint"], "make", r"must be a function of the reference, not 'make'"),
        (Solution, SOLVED, ["spec", "entry_point"], "main.py", r"\$.spec.entry_point must be a file and a function"),
        (Solution, SOLVED, ["spec", "entry_point"], "b.py::run", r"must be in one of the sources \(main.py\)"),
        (Solution, SOLVED, ["sources"], [], r"\$.sources must be a list of 1 or more"),
        (Solution, SOLVED, ["sources", 0, "path"], "../main.py", r"\$.sources\[0\].path must be a path inside"),
        (Solution, SOLVED, ["spec", "languages"], ["triton"], r"\$.spec must be an object with either language"),
        (Workload, SIZED, ["inputs", "A"], {"type": "custom"}, r"\$.inputs must be all custom, or none"),
        (Workload, SIZED, ["inputs", "A"], {"type": "scalar"}, r"\$.inputs.A.value must be there"),
        (Workload, SIZED, ["axes", "M"], -1, r"\$.axes.M must be a whole number from 0 on, not -1"),
        (
            Trace,
            TRACED,
            ["evaluation"],
            {"status": "PASSED", "environment": {"hardware": "h"}, "timestamp": "t"},
            r"\$.evaluation.correctness must be there where the status is PASSED",
        ),
    ],
)
def test_documents_that_are_wrong_are_told_with_file_path_and_what_belongs_there(
    noun, document, path, value, message, tmp_path
):
    file = tmp_path / "d.json"
    noun.read(json.loads(json.dumps(document)), At("d.json"))
    file.write_text(json.dumps(changed(document, path, value)))
    with pytest.raises(UsageError, match=message):
        read_one(noun, file)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "no JSON at line 1"),
        ('{"a": 1, "a": 2}', "'a' stands twice"),
        ('{"a": NaN}', "NaN is no JSON"),
        ('{"a": 1e999}', "1e999 is no JSON"),
        ("[" * 100_000, "no JSON"),
        ("[]", "must be an object"),
        ("null", r"\$ must be an object, not null"),
    ],
)
def test_what_is_no_json_is_told(text, message, tmp_path):
    file = tmp_path / "d.json"
    file.write_text(text)
    with pytest.raises(UsageError, match=message):
        read_one(Definition, file)
    file.write_bytes(b"\xff\xfe")
    with pytest.raises(UsageError, match="cannot be read"):
        read_one(Definition, file)
    with pytest.raises(UsageError, match="cannot be read"):
        read_calls(tmp_path / "nothing.txt")


def test_half_a_surrogate_pair_and_other_letters_are_kept():
    for text in ("\ud800", "算子", "\u2028", "\0"):
        assert loaded(dumped({"a": text}), "f") == {"a": text}
    assert "算子" in dumped({"a": "算子"})


def write(root, files):
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)


def test_a_root_and_a_problem_folder_are_read_and_written_again(tmp_path):
    line = {"definition": "gemm_n8_k4", "solution": None, "workload": SIZED, "evaluation": None, "seen": 3}
    root = {
        "definitions/gemm/gemm_n8_k4.json": json.dumps(GEMM),
        "workloads/gemm/gemm_n8_k4.jsonl": json.dumps(line) + "\n\n" + json.dumps(line),
        "solutions/a_person/gemm/gemm_n8_k4/mine.json": json.dumps(SOLVED),
        "traces/a_person/gemm/gemm_n8_k4.jsonl": json.dumps(TRACED),
    }
    write(tmp_path / "root", root)
    (found,) = task_sets(tmp_path / "root")
    assert (found.form, len(found.workloads), len(found.solutions), len(found.traces)) == (FLASHINFER, 2, 1, 1)
    again = files_of_task(found)
    assert {
        name: [json.loads(one) for one in text.split("\n") if one] for name, text in root.items() if "l" in name[-1]
    }
    for name, text in root.items():
        lines = [[text], [again[name]]] if name.endswith(".json") else [text.split("\n"), again[name].split("\n")]
        assert [exact(json.loads(one)) for one in lines[0] if one] == [
            exact(json.loads(one)) for one in lines[1] if one
        ]
    # one definition of a root, by its file
    assert task_sets(tmp_path / "root/definitions/gemm/gemm_n8_k4.json") == [found]
    sol = changed(SOLVED, ["spec"], {**SOLVED["spec"], "languages": ["pytorch"]})
    del sol["spec"]["language"]
    folder = {
        "p/gemm_n8_k4/definition.json": json.dumps(GEMM | {"hf_id": None}),
        "p/gemm_n8_k4/workload.jsonl": json.dumps(SIZED | {"tolerance": {"max_atol": 1}}),
        "p/gemm_n8_k4/solution_mine.json": json.dumps(sol),
    }
    write(tmp_path, folder)
    (problem,) = task_sets(tmp_path / "p")
    assert problem.form == SOL == form_of(problem.definition)
    again = files_of_task(problem)
    for name, text in folder.items():
        assert exact(json.loads(again[name.removeprefix("p/")])) == exact(json.loads(text))
    assert read_each(Workload, tmp_path / "p/gemm_n8_k4/workload.jsonl")[0].tolerance.max_atol == 1


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        ("definitions/b.json", json.dumps(GEMM), "both define 'gemm_n8_k4'"),
        ("definitions/b.json", json.dumps(changed(GEMM, ["op_type"], ...)), "op_type must be there|both define"),
        ("solutions/b.json", json.dumps(SOLVED | {"definition": "other"}), "no definition"),
        ("workloads/b.jsonl", json.dumps(TRACED), "belongs into traces/"),
        ("traces/b.jsonl", '{"definition": 3}', r"b.jsonl:1: \$.definition must be text"),
    ],
)
def test_roots_that_do_not_fit_together_are_told(file, text, message, tmp_path):
    write(tmp_path, {"definitions/a.json": json.dumps(GEMM), file: text})
    with pytest.raises(UsageError, match=message):
        task_sets(tmp_path)


def test_axes_of_a_workload():
    document = changed(GEMM, ["axes", "twice"], {"type": "expr", "expression": "(M * 2) // 1 + K"})
    found = Definition.read(document, At("d"))
    assert found.sizes({"M": 3}, "w") == {"M": 3, "N": 8, "K": 4, "twice": 10}
    for given_, message in (({}, "the axis M .* no size"), ({"M": 1, "N": 2}, "'N' is no axis"), ({"Q": 1}, "M")):
        with pytest.raises(UsageError, match=message):
            found.sizes(given_, "w")
    half = Definition.read(changed(document, ["axes", "twice", "expression"], "M / 2"), At("d"))
    assert half.sizes({"M": 4}, "w")["twice"] == 2
    with pytest.raises(UsageError, match="no size"):
        half.sizes({"M": 3}, "w")
