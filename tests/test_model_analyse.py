"""`opforge model analyse`: graphs, work, times and gains of whole models."""

import json
import re
from time import process_time
from xml.etree import ElementTree

import pytest
import torch
from torch.utils import flop_counter
from typer.testing import CliRunner

from family_words import FAMILIES, words_of
from opforge.cli.app import command_line
from opforge.core.definition.own_shapes import shapes_of
from opforge.core.language.errors import OpforgeError, UsageError
from opforge.machine import device_named
from opforge.model.analyse import with_note, with_uncounted
from opforge.model.analysis import analysis_of, workloads_of
from opforge.model.clock import Measured, by_clock, by_profiler, measured
from opforge.model.covered import Coverage
from opforge.model.fusible import fusions
from opforge.model.nodes import BACKWARD, Graph, Shape
from opforge.model.page import analysis_page
from opforge.model.pictures import squarified, treemap
from opforge.model.recorded import recorded
from opforge.model.source import Loaded, load_model
from opforge.model.trace import NotExported, exported, node_of
from opforge.registry import load

LLAMA = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 64,
}
NEEDS = "needs transformers: pip install 'transformers>=5.24,<6'"


def fields(given):
    return [f"{name}={json.dumps(value)}" for name, value in given.items()]


@pytest.fixture(scope="module")
def llama():
    pytest.importorskip("transformers", reason=NEEDS)
    return load_model("LlamaConfig", fields(LLAMA), batch=2, length=16)


@pytest.fixture(scope="module")
def step(llama):
    """The program of a training step."""
    return exported(llama, training=True)


@pytest.fixture(scope="module")
def coverage():
    return Coverage(load(()))


def counted(loaded, training):
    """FLOPs by PyTorch's own counter, which shares no code with ours. It leaves out a processor's attention and the
    experts of transformers unless it is told what they are, and counts each group's slopes for all groups.
    """
    aten = torch.ops.aten

    def slopes(grad, x, weight, bias, stride, padding, dilation, transposed, offset, groups, mask, **named):
        whole = flop_counter.conv_backward_flop.__wrapped__(
            grad, x, weight, bias, stride, padding, dilation, transposed, offset, groups, mask, **named
        )
        if groups == 1:
            return whole
        once = flop_counter.conv_flop_count(x, weight, grad, transposed=transposed)
        return once * (bool(mask[0]) + bool(mask[1]))

    known = {
        aten._scaled_dot_product_flash_attention_for_cpu: lambda q, k, v, *_, **named: flop_counter.sdpa_flop_count(
            q, k, v
        ),
        aten._scaled_dot_product_flash_attention_for_cpu_backward: lambda slopes, q, k, v, *_, **named: (
            flop_counter.sdpa_backward_flop_count(slopes, q, k, v)
        ),
    }
    known[aten.convolution_backward] = slopes
    # rows of a group times its matrix; of two matrices a sum for each group
    known[aten._grouped_mm] = lambda x, w, *_, **named: 2 * x[0] * x[1] * w[-1]
    with flop_counter.FlopCounterMode(display=False, custom_mapping=known) as counter:
        returned = loaded.module(**loaded.named, **loaded.fixed, **({"labels": loaded.labels} if training else {}))
        if training:
            returned.loss.backward()
    return counter.get_total_flops()


def test_a_training_step_has_the_flops_that_pytorch_counts(llama, step):
    """By the shapes of exported nodes, against a counter that watches the real call."""
    graph = step.graph
    assert graph.products == counted(llama, True) > 0
    forward = [node for node in graph.nodes if node.phase != BACKWARD and node.work.unit == "matrix"]
    assert sum(node.work.cost.flops for node in forward) == counted(llama, False)
    assert 0 < len(forward) < sum(node.work.unit == "matrix" for node in graph.nodes)


def test_a_recorded_step_is_the_exported_one(llama, step):
    """Module hooks give the same products in the same modules, forward and backward. Attention differs, and that is
    said: a Llama that is traced makes a mask, and one that is called lets its kernel skip what nobody sees.
    """
    graph = recorded(llama, training=True, why="asked for")

    def found(one, base):
        return sorted((node.phase, node.work.cost.flops) for node in one.nodes if node.base.startswith(base))

    assert found(graph, "mm") == found(step.graph, "mm")
    attention = "_scaled_dot_product_flash"
    assert [flops * 2 * 16 // 17 for _, flops in found(graph, attention)] == [
        flops for _, flops in found(step.graph, attention)
    ]
    assert "times the FLOP in products" in with_note(step.graph, graph).note and not with_note(graph, graph).note
    modules = {node.module for node in graph.nodes if node.base == "mm"}
    assert {"model.layers.0.self_attn.q_proj", "model.layers.0.mlp.down_proj", "lm_head"} <= modules
    assert modules == {node.module for node in step.graph.nodes if node.base == "mm"}


def test_neighbours_of_a_llama_are_found_with_their_operators(step, coverage):
    """Three norms, two of them with the sum before, one gate, two rotary embeddings, one loss with its scores."""
    analysis = analysis_of(
        step.graph,
        model="llama",
        about="",
        device=device_named("nvidia-h200"),
        dtype="float32",
        coverage=coverage,
    )
    found = {}
    for group in analysis.groups:
        found.setdefault(group.fusion.kind, []).append(group)
    counts = {kind: len(groups) for kind, groups in found.items() if kind != "elementwise chain"}
    assert counts == {
        "rms_norm": 3,
        "add + rms_norm": 2,
        "rotary": 2,
        "rotary of queries and keys": 1,
        "silu · mul": 1,
        "linear + silu": 1,
        "linear + residual": 2,
        "cross_entropy": 1,
        "linear + cross_entropy": 1,
    }
    assert found["rms_norm"][0].cover.operator == "rmsnorm" and found["rms_norm"][0].cover.shape == "lead=2x16,cols=32"
    assert found["silu · mul"][0].cover.shape == "shape=2x16x64"
    assert found["add + rms_norm"][0].cover.operator == "add_rmsnorm"
    assert found["cross_entropy"][0].cover.operator == "cross_entropy"
    rotary = found["rotary of queries and keys"][0].cover
    assert rotary.operator == "rotary" and "batch=2,tokens=16,heads=4,dim=8,kv_heads=2" in rotary.shape
    shown = {row.node.base: row.cover.operator for row in analysis.rows}
    assert shown["embedding"] == "embedding"
    assert all(group.fusion.saved > 0 for groups in found.values() for group in groups)
    # what is written down is what bench reads
    shapes = workloads_of(analysis)
    assert "m=32,k=32,n=96" in shapes["matmul"] and "lead=2x16,cols=32" in shapes["rmsnorm"]
    # a norm of n elements in one kernel reads x and the weight, and writes y
    norm = found["rms_norm"][0].fusion.cost
    assert (norm.bytes_read, norm.bytes_written) == (4 * (2 * 16 * 32 + 32), 4 * 2 * 16 * 32)


class Two(torch.nn.Module):
    """A product that takes long, and a cosine that takes less."""

    def __init__(self):
        super().__init__()
        self.wide = torch.nn.Linear(512, 512)

    def forward(self, x, index):
        table = torch.nn.functional.embedding(index, self.wide.weight)
        return self.wide(x).cos() + table.sum()


@pytest.fixture(scope="module")
def two():
    torch.manual_seed(0)
    return Loaded(name="two", about="", module=Two(), args=(torch.randn(256, 512), torch.zeros(3, dtype=torch.long)))


def test_bytes_are_those_of_a_hand(two):
    """x, weight and bias once and the result once; of a table the rows that are looked up."""
    nodes = {node.base: node.work.cost for node in exported(two, training=False).graph.nodes}
    linear, cos, embedding = nodes["linear"], nodes["cos"], nodes["embedding"]
    assert linear.bytes_read == 4 * (256 * 512 + 512 * 512 + 512) and linear.bytes_written == 4 * 256 * 512
    assert (cos.bytes_read, cos.bytes_written) == (4 * 256 * 512, 4 * 256 * 512)
    assert (embedding.bytes_read, embedding.bytes_written) == (3 * 8 + 4 * 3 * 512, 4 * 3 * 512)
    assert linear.flops == 2 * 256 * 512 * 512 and cos.flops == 256 * 512 and embedding.flops == 0


def test_shares_are_those_of_a_plain_loop(two):
    """Ten lines with a clock: the product alone, the cosine alone. Processor time of one thread, since others run."""
    program = exported(two, training=False)
    place = {node.base: node.index for node in program.graph.nodes}
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:

        def alone(call):
            call()
            begun = process_time()
            for _ in range(8):
                call()
            return process_time() - begun

        with torch.no_grad():
            y = two.module.wide(two.args[0])
            product, cosine = alone(lambda: two.module.wide(two.args[0])), alone(y.cos)
        by_clock(program)
        clocked = [by_clock(program, process_time) for _ in range(8)]
        profiled = [by_profiler(program, "cpu") for _ in range(6)]
    finally:
        torch.set_num_threads(threads)
    spent = [sum(one[place[base]] for one in clocked) for base in ("linear", "cos")]
    assert spent[0] / sum(spent) == pytest.approx(product / (product + cosine), abs=0.12)
    # a profiler knows wall time alone: of six passes the least disturbed ones say which node it was
    least = [min(one[place[base]] for one in profiled) for base in ("linear", "cos", "embedding")]
    assert least[0] > 1.5 * least[1] > 0 and least[2] > 0


class Gelu(torch.nn.Module):
    """A linear with its bias and its activation: one pass of opforge's linear."""

    def __init__(self):
        super().__init__()
        self.wide = torch.nn.Linear(8, 24)

    def forward(self, x):
        return torch.nn.functional.gelu(self.wide(x))


@pytest.mark.parametrize("training", [False, True])
def test_a_linear_with_its_activation_is_one_call_forward_and_training(training, coverage):
    """Autograd's graph has addmm in a linear's place, whose matrix is the other way round."""
    graph = exported(Loaded(name="gelu", about="", module=Gelu(), args=(torch.randn(4, 8),)), training=training).graph
    found = next(one for one in fusions(graph) if one.kind == "linear + bias + gelu")
    cover = coverage.of_fusion(found)
    assert (cover.operator, cover.shape) == ("linear", "rows=4,k=8,n=24,activation=gelu")


@pytest.mark.gpu
def test_a_devices_times_belong_to_the_nodes_that_launched_them():
    """By correlation ids: each product has device time, the wide one most, and all together no more than the call."""
    torch.manual_seed(0)
    with torch.device("cuda"):
        loaded = Loaded(
            name="two",
            about="",
            module=Two(),
            args=(torch.randn(4096, 512), torch.zeros(3, dtype=torch.long)),
        )
    program = exported(loaded, training=False)
    times = measured(loaded, program.graph, program, device="cuda", budget_s=1.0)
    spent = {node.base: seconds for node, seconds in zip(program.graph.nodes, times.nodes, strict=True)}
    assert spent["linear"] > spent["embedding"] > 0 and spent["cos"] > 0
    assert times.computing < times.whole and "correlation" in times.how


def test_gains_are_amdahls(two, coverage):
    """Times planted: 6 of 10 s in the product, 3 in the cosine, 1 in the rest; the call takes 20."""
    graph = exported(two, training=False).graph
    planted = {"linear": 6.0, "cos": 3.0, "add": 1.0}
    times = Measured(nodes=tuple(planted.get(node.base, 0.0) for node in graph.nodes), whole=20.0, rounds=1, how="")
    analysis = analysis_of(
        graph,
        model="two",
        about="",
        device=device_named("nvidia-h200"),
        dtype="float32",
        coverage=coverage,
        measured=times,
    )
    gains = {gain.name: gain for gain in analysis.by_operator}
    assert gains["linear"].limit == pytest.approx(20 / 14) and gains["linear"].share == pytest.approx(0.6)
    assert gains["cos"].limit == pytest.approx(20 / 17)
    assert gains["linear"].at_roof == pytest.approx(20 / (14 + gains["linear"].roof_s))
    assert times.outside == pytest.approx(0.5) and gains["linear"].operators == ("linear",)


def test_a_composite_operator_has_the_work_of_its_parts():
    """An LSTM is one node: its FLOPs are those of the products that it is made of, by a formula of textbooks."""
    lstm = Loaded(name="lstm", about="", module=torch.nn.LSTM(8, 16), args=(torch.randn(5, 2, 8),))
    node = next(node for node in exported(lstm, training=False).graph.nodes if node.base == "lstm")
    products = 2 * 5 * 2 * 4 * 16 * (8 + 16)
    assert node.work.unit == "matrix" and products <= node.work.cost.flops < 1.2 * products


def test_a_saved_program_is_analysed_with_its_inputs(two, tmp_path):
    file = str(tmp_path / "two.pt2")
    torch.export.save(torch.export.export(two.module, two.args), file)
    saved = load_model(file)
    assert exported(saved, training=False).graph.products == exported(two, training=False).graph.products
    assert recorded(saved, training=True, why="").products == 3 * 2 * 256 * 512 * 512 - 2 * 256 * 512 * 512


class Refuses(torch.nn.Module):
    """What it does depends on values: torch.export has no graph of it."""

    def forward(self, x):
        return x * 2 if float(x.sum()) > 0 else x.cos()


def test_what_export_refuses_is_recorded_and_said(capfd):
    """The call went through `x * 2`; why there is no exported graph is said once, without torch's own pages of it."""
    loaded = Loaded(name="refuses", about="", module=Refuses(), args=(torch.ones(4, 8),))
    with pytest.raises(NotExported) as refused:
        exported(loaded, training=False)
    graph = recorded(loaded, training=False, why=str(refused.value))
    assert "mul" in [node.base for node in graph.nodes] and "data-dependent" in graph.why
    assert "def forward" not in "".join(capfd.readouterr())


MISTAKES = """
import torch
def broken(): raise ValueError("no weights here")
def number(): return 3
def bare(): return torch.nn.Linear(2, 2)
class Whole(torch.nn.Module):
    def forward(self, x): return x + 1
def whole(): return Whole(), (torch.arange(4),)
def unfit(): return torch.nn.Linear(2, 2), (torch.ones(3, 3),)
"""


@pytest.mark.parametrize(
    ("words", "said", "next_step"),
    [
        (["mistakes_of_models:broken"], "ValueError: no weights here", "python -c"),
        (["mistakes_of_models:number"], "returned int", "return module, (x,)"),
        (["mistakes_of_models:bare"], "returned no inputs", "return module, (x,)"),
        (["mistakes_of_models:brokn"], "No function in mistakes_of_models named 'brokn'", "'broken'"),
        (["mistakes_of_models:unfit"], "cannot be called with its inputs", "factory"),
        (["mistakes_of_models:whole"], "returns no floating-point tensor", "factory"),
        (["no_such_module:f"], "cannot be imported", "package.module:factory"),
        (["nothing"], "'nothing' names no model", "config.json"),
        (["missing.pt2"], "no file missing.pt2", "torch.export.save"),
        (["missing.json"], "no file missing.json", "config.json"),
        (["mistakes_of_models:bare", "width=3"], "takes no fields", "configuration"),
        (["mistakes_of_models:bare", "--device", "mps"], "torch sees no 'mps' device here", "opforge doctor"),
    ],
)
def test_mistakes_are_named_with_the_next_step(words, said, next_step, tmp_path, monkeypatch):
    (tmp_path / "mistakes_of_models.py").write_text(MISTAKES)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    more = [] if "--device" in words else ["--device", "nvidia-h200"]
    with pytest.raises(OpforgeError) as raised:
        command_line(["model"])(["model", "analyse", *words, *more], standalone_mode=False)
    assert said in str(raised.value) and next_step in str(raised.value)


def test_fields_that_a_configuration_has_not_are_named(llama):
    with pytest.raises(UsageError, match=r"num_layers.*num_hidden_layers"):
        load_model("LlamaConfig", ["num_layers=2"])
    with pytest.raises(UsageError, match="Did you mean 'LlamaConfig'"):
        load_model("LlmaConfig")
    with pytest.raises(UsageError, match=r"hidden size \(33\)"):
        load_model("LlamaConfig", fields({**LLAMA, "hidden_size": 33}))
    with pytest.raises(UsageError, match="is no field"):
        load_model("LlamaConfig", ["hidden_size"])


def test_the_verb_writes_what_it_says(llama, tmp_path):
    """The analysis as JSON, on a device that is not here: nothing is run, and its roofs are asked."""
    file = tmp_path / "shapes.json"
    words = ["model", "analyse", "LlamaConfig", *fields(LLAMA), "--length", "16", "--device", "h200", "--meta"]
    run = CliRunner().invoke(command_line(["model"]), [*words, "--json", "--workloads", str(file)])
    assert run.exit_code == 0, run.output
    told = json.loads(run.stdout)
    assert told["measured"] is False and told["device"] == "nvidia-h200" and told["whole_s"] > 0
    assert json.loads(file.read_text()) == told["workloads"] and "rmsnorm" in told["workloads"]
    assert sum(row["share"] for row in told["nodes"]) == pytest.approx(1.0)


def test_a_training_step_of_shapes_alone_has_its_backward_pass(llama, step, tmp_path):
    """Tensors on "meta" gave the forward pass alone, and the analysis called it a training step."""
    words = [
        "model",
        "analyse",
        "LlamaConfig",
        *fields(LLAMA),
        "--length",
        "16",
        "--batch",
        "2",
        "--training",
        "--meta",
    ]
    run = CliRunner().invoke(command_line(["model"]), [*words, "--device", "h200", "--json"])
    assert run.exit_code == 0, run.output
    rows = json.loads(run.stdout)["nodes"]
    products = sum(row["flops"] for row in rows if row["operator"] == "aten.mm.default")
    assert products == sum(node.work.cost.flops for node in step.graph.nodes if node.base == "mm")
    frozen = torch.nn.Linear(2, 2).requires_grad_(False)
    with pytest.raises(NotExported):
        exported(Loaded(name="frozen", about="", module=frozen, args=(torch.ones(1, 2),)), training=True)


def test_the_page_is_whole_and_shows_no_markup_of_the_model(two, coverage):
    """Each picture is well-formed, nothing is loaded from elsewhere, and a model's name is text."""
    graph = exported(two, training=False).graph
    analysis = analysis_of(
        graph,
        model="<script>alert(1)</script>",
        about="",
        device=device_named("nvidia-h200"),
        dtype="float32",
        coverage=coverage,
    )
    page = analysis_page(analysis, when="2026-11-29 12:00")
    assert "<script" not in page and "&lt;script&gt;" in page and "default-src 'none'" in page
    pictures = re.findall(r"<svg .*?</svg>", page, flags=re.DOTALL)
    assert len(pictures) >= 3
    names = [text for one in pictures for text in ElementTree.fromstring(one).itertext()]
    assert any("wide" in name for name in names) and any("cos" in name for name in names)
    # the treemap's leaves fill it: areas are the shares
    tree = ElementTree.fromstring(treemap(analysis))
    areas = [float(one.get("width")) * float(one.get("height")) for one in tree if "tree-leaf" in one.get("class")]
    shares = sorted((row.share for row in analysis.rows if row.seconds), reverse=True)
    assert max(areas) / sum(areas) == pytest.approx(shares[0], abs=0.05)


def test_a_treemap_keeps_areas():
    boxes = squarified([6.0, 3.0, 2.0, 1.0], (0.0, 0.0, 4.0, 3.0))
    assert [width * height for _, _, width, height in boxes] == pytest.approx([6.0, 3.0, 2.0, 1.0])
    assert max(max(width / height, height / width) for _, _, width, height in boxes) < 2.5


FOUND = {
    "llama": {"rms_norm": 5, "add + rms_norm": 4, "rotary": 4, "silu · mul": 2, "linears of one input": 4},
    "qwen3": {"rms_norm": 9, "add + rms_norm": 4, "rotary": 4, "silu · mul": 2},
    "mixtral": {"rms_norm": 5, "rotary": 4, "silu · mul": 2},
    "gemma3": {"rms_norm": 13, "rotary": 4, "gelu · mul": 2},
    "gpt_oss": {"rms_norm": 5, "rotary": 4, "attention": 2},
    "deepseek_v3": {"rms_norm": 9, "rotary": 4, "silu · mul": 3},
    "mamba2": {"rms_norm": 5, "silu · mul": 2},
    "bert": {"add + layer_norm": 4, "linear + bias + gelu": 3, "linears of one input": 2},
    "vit": {"add + layer_norm": 4, "linear + bias + gelu": 2, "linear + residual": 4},
    "resnet": {"conv + batch_norm + relu": 7, "conv + batch_norm": 5},
    "convnext": {"linear + bias + gelu": 4},
    "whisper": {"add + layer_norm": 6, "linear + bias + gelu": 2},
}
"""Groups of each family that its code has, counted by hand: two layers of most."""


@pytest.mark.campaign
@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_is_analysed_forward_and_training(family, coverage):
    """By torch.export, of a configuration with its fields: FLOPs are PyTorch's, and its groups are found."""
    pytest.importorskip("transformers", reason=NEEDS)
    name, *given = words_of(family)
    loaded = load_model(name, given, batch=2, length=16)
    for training in (False, True):
        graph = exported(loaded, training=training).graph
        analysis = analysis_of(
            graph,
            model=family,
            about="",
            device=device_named("nvidia-h200"),
            dtype="float32",
            coverage=coverage,
        )
        loaded.module.train(training)
        assert graph.products == counted(loaded, training) > 0
        assert sum(row.share for row in analysis.rows) == pytest.approx(1.0)
        if not training:
            kinds = [group.fusion.kind for group in analysis.groups]
            assert {kind: kinds.count(kind) for kind in FOUND[family]} == FOUND[family]
        else:
            backward = sum(row.node.phase == BACKWARD for row in analysis.rows)
            placed = sum(bool(row.node.module) for row in analysis.rows if row.node.phase == BACKWARD)
            assert 0.75 < placed / backward <= 1.0
        assert "<svg" in analysis_page(analysis, when="")
        for operator, shapes in workloads_of(analysis).items():
            assert len(shapes_of(coverage.registry.unasked(operator), shapes)) == len(shapes)


def test_arithmetic_that_is_not_counted_is_said():
    """kron without its second factor cannot be called, so that its parts are not known."""
    one = Shape(sizes=(2, 2), strides=(2, 1), dtype="float32", itemsize=4)
    known = {"module": "", "module_class": "", "phase": "forward", "outputs": (one,), "sources": (None,)}
    lost = node_of(index=0, name="lost", target=torch.ops.aten.kron.default, arguments={"self": one}, **known)
    whole = node_of(
        index=1, name="whole", target=torch.ops.aten.kron.default, arguments={"self": one, "other": one}, **known
    )
    assert "other" in lost.uncounted and not whole.uncounted and whole.work.cost.flops == 16
    graph = Graph(nodes=(lost, whole), route="", why="", training=False, note="a note")
    note = with_uncounted(graph).note
    assert note.startswith("a note; the arithmetic of 1 of the nodes is not counted, first of aten.kron.default (")
