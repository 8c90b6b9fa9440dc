"""Typical mistakes of a first day, as data: how each is made, what it ends as, and the words its message must hold:
where it is, and what to do next. tests/test_mistakes.py makes every one of them.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Mistake:
    """where, then   words of the message: the place of the mistake, and the next step; `then` is empty where the
    message has none, which counts as not actionable
    """

    what: str
    where: str
    then: str


@dataclass(frozen=True, kw_only=True)
class Edit(Mistake):
    """A file of the operator `squares`, as `opforge new squares` writes it, with one piece of its text replaced.

    ends   the exit code of `opforge show squares`, or the verdict of the file in its first case
    """

    file: str
    old: str
    new: str
    ends: int | str = 2


@dataclass(frozen=True, kw_only=True)
class Command(Mistake):
    """A command line. {home} is a home with the operator squares, {tmp} an empty folder."""

    words: str
    code: int = 2


@dataclass(frozen=True, kw_only=True)
class Call(Mistake):
    """A call in Python, with x of 4 x 8 and w of 8 elements."""

    call: str
    raises: str = "UsageError"


def _op(what: str, old: str, new: str, where: str, then: str) -> Edit:
    return Edit(what=what, file="op.py", old=old, new=new, where=where, then=then)


AXES = 'axes={"shape": (7, 129)}'
REFERENCE = "    reference=reference,\n"
IMPORT = "from opforge.core.operator import Case, Law, Operator, TensorSpec, Tolerance, Workload\n"
SCALAR = "from opforge.core.operator import Scalar\n"
INPUT = 'TensorSpec(name="x", shape="*shape")'

DEFINITIONS = (
    _op("a misspelt field", "flops=", "flop=", "op.py cannot be loaded", "Did you mean 'flops'?"),
    _op("no reference", REFERENCE, "", "missing 1 required keyword-only argument: 'reference'", "reference=reference"),
    _op("a case without why", ', why="one past a block of 128"', "", "(line 25)", 'why="one past a block of 128"'),
    _op("another name than the folder's", 'name="squares"', 'name="square"', "op.py", "Let them agree"),
    _op(
        "one input without a comma", f"inputs=({INPUT},)", f"inputs=({INPUT})", "op.py:15: inputs", "write for example"
    ),
    _op("inputs by name alone", f"inputs=({INPUT},)", 'inputs=("x",)', "op.py:15: inputs", "TensorSpec(name="),
    _op("a number for several axes", AXES, 'axes={"shape": 1}', "case 'odd_tail': shape", "(4,) for one axis"),
    _op("no axes", AXES, "axes={}", "case 'odd_tail'", "it needs shape"),
    _op(
        "a misspelt axis", AXES, 'axes={"shpe": (7, 129)}', "case 'odd_tail' has the axes shpe", "Give a size for each"
    ),
    _op("a negative size", AXES, 'axes={"shape": (-7, 129)}', "case 'odd_tail': shape", "none below 0"),
    _op(
        "a size with a point", AXES, 'axes={"shape": (7.0, 129)}', "axes of Case 'odd_tail'", "write for example axes="
    ),
    _op("a misspelt distribution", '"large", why', '"larg", why', "case 'large'", "Did you mean 'large'?"),
    _op("a layout that is none", '"misaligned", why', '"unaligned", why', "case 'misaligned'", "Known here"),
    _op(
        "a dtype that is none",
        INPUT,
        INPUT[:-1] + ', dtype="fp32")',
        "x has unknown dtype 'fp32'",
        "Choose one of them",
    ),
    _op("dtypes by another name", REFERENCE, REFERENCE + '    dtypes=("half",),\n', "squares: dtypes", "float16"),
    _op("dtypes as a text", REFERENCE, REFERENCE + '    dtypes="float32",\n', "op.py:15: dtypes", 'dtypes=("float32"'),
    _op(
        "an output with an axis of its own",
        'name="y", shape="*shape"',
        'name="y", shape="rows"',
        "output y",
        "or let it follow",
    ),
    _op("axes with commas", 'name="y", shape="*shape"', 'name="y", shape="*shape,"', "output y", "Axes of the inputs"),
    _op(
        "a shape as a tuple", INPUT, 'TensorSpec(name="x", shape=("rows",))', "shape of TensorSpec 'x'", 'shape="*lead'
    ),
    _op("a parenthesis left open in flops", '"prod(shape)"', '"prod(shape"', "squares: flops", "Write it as Python"),
    _op("a misspelt axis in flops", '"prod(shape)"', '"prod(shpe)"', "squares: flops", "Did you mean 'shape'?"),
    _op("a number for flops", 'flops="prod(shape)"', "flops=1000", "op.py:15: flops", "write for example flops="),
    _op(
        "a function that expressions have not",
        '"prod(shape)"',
        '"isqrt(prod(shape))"',
        "squares: flops",
        "Write it with names",
    ),
    _op(
        "a number for the tolerance", "tolerance=Tolerance()", "tolerance=1e-3", "tolerance of", "tolerance=Tolerance("
    ),
    _op(
        "rtol",
        "Tolerance()",
        "Tolerance(rtol=1e-3)",
        "argument 'rtol' (line 22)",
        "Choose one that there is: Tolerance has factor",
    ),
    _op(
        "an unknown axis in the tolerance",
        "Tolerance()",
        'Tolerance(length="cols")',
        "tolerance.length",
        "Write it with these",
    ),
    _op(
        "a law as a text",
        "holds=never_negative",
        'holds="y >= 0"',
        "holds of Law 'never_negative'",
        "write for example",
    ),
    _op(
        "a file that is not there", '"triton_flat"', '"triton_flt"', "triton_flt.py does not exist", "take the name out"
    ),
    _op("a backend that is none", '"triton_flat"', '"opencl_flat"', "lists 'opencl_flat'", "Rename it"),
    _op("a syntax error", "operator = Operator(", "operator = Operator((", "(line 15)", "Mend it there"),
    _op("a noun that is none", "import Case,", "import Cases,", "'Cases'", "Mend it there"),
    _op(
        "another name for the operator",
        "operator = Operator(",
        "op = Operator(",
        "op.py defines no",
        "opforge show softmax",
    ),
    _op("a name that is not defined", REFERENCE, "    reference=referense,\n", "(line 20)", "Mend it there"),
    _op("two cases of one name", 'name="one"', 'name="odd_tail"', "'odd_tail' stands 2 times", "rename or remove one"),
    _op("two inputs of one name", f"({INPUT},)", f"({INPUT}, {INPUT})", "share a name: ['x', 'x', 'y']", "Rename one"),
    _op("a scale that is none", 'scale="laptop"', 'scale="desktop"', "workload 'small'", 'Say "laptop" or "gpu"'),
    _op(
        "a default that is no choice",
        REFERENCE,
        REFERENCE + '    scalars=(Scalar(name="mode", default="fast", choices=("slow",)),),\n',
        "squares: mode = 'fast' by default",
        "Choose one",
    ),
    _op(
        "a parameter that the reference does not take",
        REFERENCE,
        REFERENCE + '    scalars=(Scalar(name="eps", default=1.0),),\n',
        "the reference takes (x), and is given (x, eps)",
        "Let them agree",
    ),
    _op(
        "a constraint over an unknown axis",
        REFERENCE,
        REFERENCE + '    constraints=(Constraint(name="c", expression="cols > 2", about="a"),),\n',
        "constraint 'c'",
        "Write it with these",
    ),
    _op(
        "an axis that follows from itself",
        REFERENCE,
        REFERENCE + '    derived={"a": "a + 1"},\n',
        "squares: a:",
        "Write it with these",
    ),
    _op(
        "a keyword as a name", INPUT, 'TensorSpec(name="in", shape="*shape")', "'in' cannot name a tensor", "Rename it"
    ),
    _op(
        "a reference of two tensors",
        "def reference(x)",
        "def reference(x, b)",
        "the reference takes (x, b)",
        "Let them agree",
    ),
    _op(
        "a gradient that is no operator",
        REFERENCE,
        REFERENCE + '    gradient="sq_backward",\n',
        "'sq_backward'",
        "opforge new",
    ),
    _op(
        "a case of another dtype", AXES, AXES + ', dtype="float64"', "case 'odd_tail' is for float64", "Take dtype out"
    ),
    _op(
        "a case with an unknown parameter",
        AXES,
        AXES + ', scalars={"alpha": 2}',
        "case 'odd_tail'",
        "opforge --home {home} show squares",
    ),
    _op(
        "a unit that is none",
        REFERENCE,
        REFERENCE + '    unit="tensor",\n',
        "squares: unit is 'tensor'",
        '"vector" for',
    ),
)


def _says(what: str, file: str, old: str, new: str, where: str, then: str) -> Edit:
    return Edit(what=what, file=file, old=old, new=new, where=where, then=then)


SPACE = 'SPACE = {"BLOCK": (256, 512, 1024, 2048, 4096)}'
DEFAULT = 'DEFAULT = {"BLOCK": 1024}'
T, C, P, L = "triton_flat.py", "cpp_flat.cpp", "torch_eager.py", "tilelang_flat.py"

STATEMENTS = (
    _says("a SPACE that is computed", T, SPACE, "SPACE = dict(BLOCK=(1024,))", f"{T}:9: SPACE", "Write its values out"),
    _says(
        "a SPACE of one number", T, SPACE, 'SPACE = {"BLOCK": 1024}', f"{T}:9: SPACE 'BLOCK'", '{"BLOCK": (256, 512)}'
    ),
    _says("a SPACE without names", T, SPACE, "SPACE = [1024]", f"{T}:9: SPACE must be a dict", "Correct it there"),
    _says(
        "a DEFAULT outside of SPACE", T, DEFAULT, 'DEFAULT = {"BLOCK": 1000}', f"{T}:10: DEFAULT BLOCK", "Add it there"
    ),
    _says(
        "a misspelt tunable", T, DEFAULT, 'DEFAULT = {"BLOK": 1024}', f"{T}:10: DEFAULT has no BLOCK", "Add it: one of"
    ),
    _says("a misspelt statement", T, "DEFAULT", "DEFUALT", f"{T}:10: DEFUALT", "Did you mean DEFAULT?"),
    _says(
        "an unknown axis in LIMITS",
        T,
        DEFAULT,
        DEFAULT + '\nLIMITS = {"fits": "cols > BLOCK"}',
        f"{T}:11: LIMITS",
        "Write it with what there is",
    ),
    _says(
        "half a condition",
        T,
        DEFAULT,
        DEFAULT + '\nLIMITS = {"fits": "BLOCK >"}',
        f"{T}:11: LIMITS 'fits'",
        "Write it as",
    ),
    _says(
        "LIMITS that leave out the DEFAULT",
        T,
        DEFAULT,
        DEFAULT + '\nLIMITS = {"fits": "BLOCK != 1024"}',
        f"{T}:11: LIMITS 'fits'",
        "Change one of them",
    ),
    _says(
        "an unknown axis in SUPPORTS",
        T,
        DEFAULT,
        DEFAULT + '\nSUPPORTS = {"a": "shap"}',
        f"{T}:11: SUPPORTS",
        "'shape'",
    ),
    _says(
        "a misspelt layout", T, DEFAULT, DEFAULT + '\nLAYOUTS = ("contigous",)', f"{T}:11: LAYOUTS", "Choose among them"
    ),
    _says(
        "a dtype by another name", T, DEFAULT, DEFAULT + '\nDTYPES = ("fp32",)', f"{T}:11: DTYPES", "Choose among them"
    ),
    _says("a syntax error in a kernel", T, "*, BLOCK):", "*, BLOCK)", f"{T}:22: expected ':'", "must parse before"),
    _says("no TOML", C, "#include", "/* opforge\nspace = [\n*/\n#include", f"{C}: the /* opforge", "docs/kernels.md"),
    _says(
        "a misspelt key",
        C,
        "#include",
        '/* opforge\nlayout = ["rows"]\n*/\n#include',
        f"{C}:5: unknown keys layout",
        "Did you mean layouts?",
    ),
    _says(
        "a header that is none",
        C,
        "#include",
        '/* opforge\nlike = "opforge/rows/nowhere.h"\n*/\n#include',
        "'opforge/rows/nowhere.h'",
        "such as opforge/rows/onchip.h",
    ),
)


def _runs(what: str, file: str, old: str, new: str, where: str, then: str, ends: str = "Broken") -> Edit:
    return Edit(what=what, file=file, old=old, new=new, where=where, then=then, ends=ends)


RESULT = "return x * x"
LAUNCH = "    kernel[(triton.cdiv(n, BLOCK),)](x, y, n, BLOCK=BLOCK)"

KERNELS = (
    _runs("no run", P, "def run(", "def forward(", "torch_eager.py defines no `run`", "docs/kernels.md"),
    _runs(
        "an argument too many", P, "(x: Tensor)", "(x: Tensor, y: Tensor)", "squares/torch_eager.py", "check-interface"
    ),
    _runs("nothing returned", P, RESULT, "x * x", "returned a NoneType for y", "Return what it computed"),
    _runs("another shape returned", P, RESULT, "return (x * x).sum(-1)", "y with shape (7,)", "expected (7, 129)"),
    _runs("another dtype returned", P, RESULT, "return (x * x).double()", "y as torch.float64", "y.to(torch.float32)"),
    _runs("two results for one", P, RESULT, "return x, x * x", "returned 2 values", "Return one tensor for each"),
    _runs("the input returned", P, RESULT, "return x.mul_(x)", "y in the memory of an input", "Return a new tensor"),
    _runs(
        "an unknown name in PyTorch",
        P,
        RESULT,
        "return z * x",
        "name 'z' is not defined",
        "see squares/torch_eager.py:7",
    ),
    _runs(
        "a package that is not here", P, "\n\n\ndef", "\nimport flash_attnn\n\n\ndef", "flash_attnn", "torch_eager.py:4"
    ),
    _runs("no launch", T, "def launch(", "def lunch(", "triton_flat.py defines no `launch`", "docs/kernels.md"),
    _runs("launch without the output", T, "launch(x, y, *", "launch(x, *", "squares/triton_flat.py", "check-interface"),
    _runs(
        "launch without its tunable", T, "launch(x, y, *, BLOCK)", "launch(x, y)", "'BLOCK'", "opforge check-interface"
    ),
    _runs(
        "output before input", T, "launch(x, y, *", "launch(y, x, *", "input x was modified", "inputs first, then its"
    ),
    _runs("a store without a mask", T, "ty), mask=inside)", "ty))", "written past the end of y", "a mask on the store"),
    _runs(
        "a grid that leaves out the tail",
        T,
        "triton.cdiv(n, BLOCK)",
        "n // BLOCK",
        "y[0, 0] is nan",
        "never written",
        ends="Mismatch",
    ),
    _runs(
        "a block of no power of two", T, "tl.arange(0, BLOCK)", "tl.arange(0, 1000)", "power of 2", "triton_flat.py:16"
    ),
    _runs(
        "a block that is no constexpr",
        T,
        "BLOCK: tl.constexpr",
        "BLOCK",
        "tl.constexpr",
        "see squares/triton_flat.py:16",
    ),
    _runs("an unknown name in Triton", T, "(x * x).to", "(x * z).to", "name 'z' is not defined", "triton_flat.py:19"),
    _runs("a function that Triton has not", T, "tl.store(", "tl.stor(", "has no attribute 'stor'", "triton_flat.py:19"),
    _runs("a kernel without an argument", T, "(x, y, n, BLOCK=", "(x, y, BLOCK=", "argument: 'n'", "triton_flat.py:24"),
    _runs("no @triton.jit", T, "@triton.jit\n", "", "not subscriptable", "see squares/triton_flat.py:"),
    _runs(
        "a grid that is no whole number", T, "triton.cdiv(n, BLOCK)", "n / BLOCK", "as an integer", "triton_flat.py:24"
    ),
    _runs(
        "PyTorch in the place of a kernel",
        T,
        LAUNCH,
        "    y.copy_(x * x)",
        "has PyTorch compute: aten.mul",
        "written for triton",
        ends="LibraryFallback",
    ),
    _runs("no export", C, "OPFORGE_EXPORT(run, run)", "", "no function `run`", "OPFORGE_EXPORT(run, your_function)"),
    _runs(
        "a type that is none",
        C,
        "const float v =",
        "const flot v =",
        "cpp_flat.cpp:12:13: error",
        "Run this to see it whole",
    ),
    _runs("no semicolon", C, "(v * v);", "(v * v)", "cpp_flat.cpp:13:49: error", "Run this to see it whole"),
    _runs(
        "a header that is not there",
        C,
        '"opforge/host.h"',
        '"opforge/hosts.h"',
        "cpp_flat.cpp:4",
        "Run this to see it whole",
    ),
    _runs("a comment left open", C, "#include", "/* opforge\n#include", "cpp_flat.cpp:4:1", "Run this to see it whole"),
    _runs(
        "an argument too many in C++",
        C,
        "void run(opforge::TensorView x, opforge::TensorView y)",
        "void run(opforge::TensorView x, opforge::TensorView y, double alpha)",
        "squares/cpp_flat.cpp",
        "opforge check-interface",
    ),
)


def _asks(what: str, words: str, where: str, then: str, code: int = 2) -> Command:
    return Command(what=what, words=words, where=where, then=then, code=code)


COMMANDS = (
    _asks("a number that is none", "optimize softmax --target nan", "--target is nan", "Give one, or leave it out"),
    _asks(
        "rules for a kernel without tunables",
        "optimize softmax --implementation torch_eager --device cpu",
        "torch_eager has no SPACE",
        "--engine model",
    ),
    _asks("an unknown operator", "verify sofmax", "'sofmax'", "Did you mean 'softmax'?"),
    _asks("no operator", "verify", "Name an operator", "opforge list"),
    _asks("an unknown verb", "verfy softmax", "'verfy'", "Did you mean 'verify'?"),
    _asks("an unknown option", "verify softmax --dtpe float32", "--dtpe", "--dtype"),
    _asks("an option without its value", "verify softmax --dtype", "Option '--dtype'", "Write one behind it"),
    _asks("an unknown dtype", "verify softmax --dtype float12", "'float12'", "Did you mean 'float32'?"),
    _asks("dtypes with a comma", "verify softmax --dtype float32,float16", "'float32,float16'", "once for each"),
    _asks("a dtype that is not defined", "bench softmax --dtype int8", "for int8", "Choose from: bfloat16"),
    _asks("an unknown backend", "verify softmax --backend cudo", "'cudo'", "Did you mean 'cuda'?"),
    _asks("an unknown implementation", "verify softmax -i cpp_twopas", "'cpp_twopas'", "Did you mean 'cpp_twopass'?"),
    _asks("an unknown workload", "bench softmax --workload gpt3", "workload named 'gpt3'", "Choose one of them"),
    _asks("a shape with a colon", "bench softmax --shape cols:5", "--shape cols:5", "Example: --shape lead="),
    _asks("a shape without an axis", "bench softmax --shape cols=5", "leaves out lead", "Example: --shape lead="),
    _asks("a shape with an unknown axis", "bench softmax --shape rows=3,cols=4", "no axis 'rows'", "Example: --shape"),
    _asks("a negative size", "bench softmax --shape lead=3,cols=-5", "cols='-5'", "write a whole number"),
    _asks("a shape of nothing", "bench softmax --shape lead=3,cols=0", "an axis of size 0", "Example: --shape"),
    _asks(
        "a shape beyond all memory", "bench softmax --shape lead=999999,cols=99999999", "TiB", "Choose smaller sizes"
    ),
    _asks("a file of shapes that is not there", "bench softmax --shape s.json", "s.json: No such file", "Name a place"),
    _asks("a config without a value", "verify softmax -i triton_online --config BLOCK", "--config BLOCK", "Example"),
    _asks(
        "an unknown tunable", "verify softmax -i triton_online --config BLOK=5", "'BLOK'", "Example: --config block="
    ),
    _asks("a device that is not here", "verify softmax --device npu", "'npu'", "opforge doctor", code=3),
    _asks("a home that is not there", "--home {tmp}/none list", "none is not a folder", "opforge new NAME --home"),
    _asks(
        "an operator's folder as a home", "--home {home}/squares list", "squares is an operator's own", "name {home}"
    ),
    _asks("a folder without op.py", "--home {tmp} verify empty", "empty has no op.py", "opforge show softmax --source"),
    _asks("a report that cannot be written", "bench softmax --report /proc/no", "/proc/no", "Name a place that exists"),
    _asks("a budget in words", "bench softmax --budget fast", "'--budget': 'fast'", "opforge bench -h"),
    _asks("a store that is a folder", "--store {tmp} records show", "is a folder", "Name one, like"),
    _asks("a database that is none", "--store mysqll://x records show", "'mysqll'", "postgresql://user@host/database"),
    _asks(
        "a store that is damaged",
        "--store {tmp}/bad.sqlite records show",
        "bad.sqlite was damaged",
        "See what there is with: opforge records",
        code=0,
    ),
    _asks("one side of a comparison", "compare softmax:cpp_twopass", "Missing argument 'B'", "opforge compare -h"),
    _asks("a side in another form", "compare softmax/cpp softmax/torch", "'softmax/cpp'", "e.g. softmax:torch_eager"),
    _asks("nothing to sweep", "sweep softmax", "Nothing to sweep", "Say --axis NAME="),
    _asks("a sweep backwards", "sweep softmax --axis cols=10:1:log", "from 10 to 1", "e.g. cols=128:65536:log"),
    _asks("nothing to inspect", "inspect softmax", "Name an implementation of softmax", "cpp_twopass"),
    _asks("a name with a dash", "new Bad-Name", "'Bad-Name'", "use lower-case letters"),
    _asks("a taken name", "new softmax", "'softmax' already", "Choose another name"),
    _asks("a file of records that is not there", "records import {tmp}/none", "none is not a file", "records export"),
    _asks("an unknown run", "report --run none", "run none", "opforge bench --all"),
    _asks("an unknown record", "verify --replay abc123", "'abc123'", "opforge records"),
    _asks("an unknown baseline", "check --against nope", "'nope'", "opforge baseline promote nope"),
    _asks("an unknown pipeline", "verify --pipeline mpl", "'mpl'", "Did you mean 'mlp'?"),
    _asks("an unknown sanitizer", "verify softmax --sanitize memchk", "'memchk'", "Did you mean 'memcheck'?"),
    _asks("an unknown device to look at", "device show h2000", "'h2000'", "opforge device new"),
    _asks("a folder without tasks", "suite run {tmp}", "has no tasks", "opforge suite run"),
)


def _calls(what: str, call: str, where: str, then: str, raises: str = "UsageError") -> Call:
    return Call(what=what, call=call, where=where, then=then, raises=raises)


CALLS = (
    _calls("an unknown function", "ops.softmx", "'softmx'", "Did you mean 'softmax'?", raises="AttributeError"),
    _calls("whole numbers", "ops.softmax(torch.ones(3, 4, dtype=torch.int64))", "not int64", "x.to(torch.float32)"),
    _calls("a list", "ops.softmax([[1.0, 2.0]])", "[[1.0, 2.0]] is a list", "Make a tensor of it"),
    _calls("an array of NumPy", "ops.softmax(x.numpy())", "is a ndarray", "torch.as_tensor"),
    _calls("no argument", "ops.softmax()", "softmax takes 1 tensor (x), not 0", "Give them in this order"),
    _calls("an unknown parameter", "ops.softmax(x, axis=1)", "no parameter 'axis'", "opforge show softmax"),
    _calls("a parameter by another name", "ops.rmsnorm(x, w, epsilon=1e-6)", "'epsilon'", "It takes: eps"),
    _calls("no weight", "ops.rmsnorm(x)", "(x, weight), not 1", "opforge show rmsnorm"),
    _calls("a weight of another size", "ops.rmsnorm(x, w[:7])", "cols = 8, elsewhere it is 7", "weight (cols)"),
    _calls("a weight of another dtype", "ops.rmsnorm(x, w.half())", "not float16, float32", "x.to(y.dtype)"),
    _calls("matrices that do not fit", "ops.matmul(x, x)", "b has k = 4, elsewhere it is 8", "a (m k), b (k n)"),
    _calls("two devices", "ops.matmul(x, torch.ones(8, 3, device='meta'))", "not cpu, meta", "x.to(y.device)"),
    _calls("a word for a number", "ops.rmsnorm(x, w, eps='small')", "eps is 'small'", "e.g. eps=1e-06"),
    _calls("a choice that is none", "ops.gelu(x, approximate='tahn')", "approximate = 'tahn'", "Choose one of them"),
    _calls("a tensor for a parameter", "ops.softmax(x, out=x)", "no parameter 'out'", "opforge show softmax"),
    _calls("an argument twice", "ops.rmsnorm(x, w, weight=w)", "weight is given twice", "Give it once"),
    _calls("a sparse tensor", "ops.softmax(x.to_sparse())", "not torch.sparse_coo", "x.to_dense()"),
    _calls("targets in floating point", "ops.cross_entropy(x, w[:4])", "target as int64", "target.to(torch.int64)"),
)


def _new(what: str, formula: str, where: str, then: str) -> Command:
    """The rest of the words after --formula is one argument."""
    return Command(what=what, words=f"new thing --home {{tmp}} --formula {formula}", where=where, then=then)


def _from(what: str, text: str, where: str, then: str) -> Command:
    """The file has this text; its lines are written with \\n."""
    return Command(what=what, words=f"new thing --home {{tmp}} --from {text}", where=where, then=then)


WHOLE = 'inputs: {x: "*lead cols"}\noutputs: {y: "*lead cols"}\nformula: y = x * 2\n'

FORMULAS = (
    _new("a parenthesis left open", "y = silu(x[n] * scale", "line 1, column 22", "')' or ',' is missing"),
    _new("an unknown function", "y = sillu(x[n])", "line 1, column 5", "Did you mean silu?"),
    _new("no result", "silu(x[n])", "line 1, column 5", "'=' is missing"),
    _new("an empty formula", "", "The formula is empty", "Write for example"),
    _new("axes that are not known", "y = x[n] * eps", "The axes of eps are not known", "--parameter eps=1.0"),
    _new("a product without axes", "c = relu(a @ b + bias)", "axes of a, b, bias", "a[*lead, k] @ b[k, n]"),
    _new("a product that does not fit", "y = x[m, k] @ w[n, h]", "line 1, column 13", "Give both the same name"),
    _new("an axis that is a name of generated code", "y = x[m, j]", "the axis 'j'", "Choose another, e.g. cols"),
    _new("a condition in Python's way", "y = x[n] if x[n] > 0 else 0", "line 1, column 10", "an operation is missing"),
    _new("a value too many", "y = exp(x[n], 2)", "line 1, column 5", "exp takes 1 value; 2 given"),
    _new("a keyword as a name", "lambda = x[n]", "'lambda' cannot name", "Choose another"),
    _from("no formula", 'inputs: {x: "n"}\n', "formula is missing", "Write: formula:"),
    _from("no YAML", WHOLE + "  workloads: 3\n", "definition.yaml line 4", "Quote what has a colon"),
    _from("an unknown field", WHOLE + "workload: {}\n", "definition.yaml", "Did you mean 'workloads'?"),
    _from("a dtype that is none", WHOLE + "dtypes: [fp32]\n", "dtypes is ['fp32']", "Give a list of float32"),
    _from("a shape that is a number", WHOLE.replace('"*lead cols"', "3", 1), "inputs.x is 3", "Write axes with spaces"),
    _from(
        "a workload without a source", WHOLE + "workloads: {a: {axes: {cols: 2}}}\n", "workload a", "Say which layer"
    ),
    _from(
        "a workload that lacks an axis",
        WHOLE + "workloads: {a: {axes: {lead: [4]}, source: mine}}\n",
        "The workload a gives the axis 'cols' no size",
        "Add cols: 768",
    ),
    _from(
        "a workload with an axis of no input",
        WHOLE + "workloads: {a: {axes: {lead: [4], clos: 3}, source: mine}}\n",
        "axis of the workload a named 'clos'",
        "Did you mean 'cols'?",
    ),
    _from(
        "a workload with several sizes for one axis",
        WHOLE + "workloads: {a: {axes: {lead: [4], cols: [3, 5]}, source: mine}}\n",
        "several sizes for 'cols'",
        "Give a number",
    ),
)

ALL: tuple[Mistake, ...] = (*DEFINITIONS, *STATEMENTS, *KERNELS, *COMMANDS, *CALLS, *FORMULAS)
