"""Definition documents: what is written is read again, task books are read, the analysis is computed, and the four
files run on their own.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from opforge.cli.app import command_line
from opforge.core.language.errors import UsageError
from opforge.forge import files_of, from_formula, generate
from opforge.forge.program.definition import definition_of
from opforge.forge.read.documents import definition_in
from opforge.registry import load

FULL = {
    "formula": "centred = x - mean(x)\ny = centred * rsqrt(mean(square(centred)) + eps) * w / s",
    "about": "rows without their mean | over their deviation",
    "source": "Ba, Kiros and Hinton, 2016",
    "kind": "Normalization",
    "device": "nvidia-h200",
    "target": 1.2,
    "rounds": 3,
    "inputs": {
        "x": "*lead cols",
        "w": {"shape": "cols", "about": "a weight"},
        "s": {"shape": "cols", "domain": "positive"},
    },
    "outputs": {"y": "*lead cols"},
    "parameters": {"eps": 1e-5},
    "dtypes": ["float32", "bfloat16"],
    "constraints": {"whole_vectors": "cols % 4 == 0"},
    "requirements": {"scenes": "attention", "performance": "rows of 4096"},
    "workloads": {
        "bert": {"axes": {"lead": [8, 512], "cols": 768}, "source": "BERT base", "scale": "laptop"},
        "one": {"axes": {"lead": 4, "cols": 64}, "source": "a single axis before the row"},
        "row": {"axes": {"lead": [], "cols": 64}, "source": "no axis before the row"},
    },
}  # fmt: skip
TASK_BOOK = """需求示例（Broadcast算子）：
- 算子名称：Broadcast
- 功能描述：将低维张量沿指定维度广播扩展至高维张量形状
- 应用场景：激活函数偏置加法、BatchNorm、Attention中的Masking
- 精度要求：符合IEEE FP16/BF16标准
- 支持特性：动态Shape输入
"""
TABLES = """#### 步骤3：定义算子基本信息

| 属性 | 值 | 说明 |
|------|-----|------|
| **算子名称** | Broadcast | 算子的唯一标识 |
| **测评设备** | Ascend-snt9b / 910B | 目标硬件平台 |
| **算子类型** | Pointwise | 算子的计算类型 |

**输入参数定义**：

#### 输入参数

| 参数名称 | 数据类型 | 描述 | 约束条件 |
|---------|---------|------|---------|
| **x** | torch.Tensor | 高维输入张量 | 必须位于NPU设备上 |
| **bias** | torch.Tensor | 低维偏置张量 | 必须位于NPU设备上 |
| **scale** | float | 比例 | 默认值 0.5 |

- `x` 和 `bias` 必须为连续内存格式（contiguous）
- 支持的数据类型：float16, bfloat16, float32

#### 输出参数

| 数据类型 | 描述 | 特性 |
|---------|------|------|
| **torch.Tensor** | 广播后的输出张量 | 形状与输入张量 `x` 相同 |
"""
SUM = "out = x[*lead, cols] + bias[cols]"


@pytest.mark.parametrize("language", ["en", "zh"])
def test_a_document_says_everything_that_its_definition_says(language):
    given = definition_of(FULL, "norm", "a test")
    text = files_of(given, language)["definition.md"]
    again = definition_in(text, "norm", "definition.md")
    assert again == given
    assert files_of(again, language)["definition.md"] == text


@pytest.mark.parametrize(
    "formula",
    [
        "c = relu(a[*lead, k] @ b[k, n] + bias[n])",
        "out = gelu(x[batch, chan, *spatial] + b[batch, chan]) * s[chan]",
        SUM,
    ],
)
def test_documents_of_formulas_alone_are_read_again(formula):
    given = from_formula("made", formula)
    for language in ("en", "zh"):
        again = definition_in(files_of(given, language)["definition.md"], "made", "definition.md")
        first, second = given.program(), again.program()
        assert (first.reads, first.writes[0].axes) == (second.reads, second.writes[0].axes)
        assert (again.formula.text, again.dtypes) == (formula, given.dtypes)


def test_the_analysis_is_computed():
    text = files_of(from_formula("made", "c = a[m, k] @ b[k, n]"))["definition.md"]
    # 2 * 4096^3 operations, 3 * 4096^2 elements of two bytes; an H200 multiplies bfloat16 by tensor cores
    assert "O(m * n * k)" in text or "O(m * k * n)" in text
    assert "| large | bfloat16 | 137 GFLOP | 96.0 MiB | 1.37e+03 |" in text
    assert "compute" in next(line for line in text.splitlines() if line.startswith("| nvidia-h200 |"))
    added = files_of(from_formula("added", SUM))["definition.md"]
    assert "memory bandwidth is the expected bottleneck" in added
    assert "memory" in next(line for line in added.splitlines() if line.startswith("| nvidia-h200 |"))
    # nothing is known of this device's rates, and nothing is made up
    assert "| ascend-910b | ? | ? | ? | ? | ? |" in added


def test_a_task_book_is_read_and_asks_for_the_formula_that_it_lacks(tmp_path):
    with pytest.raises(UsageError, match=r"no formula, .* --formula"):
        definition_in(TASK_BOOK, "broadcast", "task.md")
    for found in (
        definition_in(TASK_BOOK, "broadcast", "task.md", SUM),
        definition_in(f"{TASK_BOOK}- 计算公式：{SUM}\n", "broadcast", "task.md"),
    ):
        assert found.dtypes == ("float16", "bfloat16")
        assert found.about == "将低维张量沿指定维度广播扩展至高维张量形状"
        assert found.requirements["features"] == "动态Shape输入"
        assert [item.axes for item in found.inputs] == [("*lead", "cols"), ("cols",)]
    path = tmp_path / "task.md"
    path.write_text(TASK_BOOK, encoding="utf-8")
    answer = CliRunner().invoke(
        command_line(["new"]),
        ["new", "broadcast", "--from", str(path), "--home", str(tmp_path / "home"), "--formula", SUM],
    )
    assert answer.exit_code == 0, answer.output
    # a Chinese task book gives a Chinese document
    assert "## 2. 算法分析" in (tmp_path / "home/broadcast/definition.md").read_text(encoding="utf-8")


def test_tables_of_a_task_book_are_read():
    found = definition_in(TABLES, "broadcast", "task.md", "out = (x[*lead, cols] + bias[cols]) * scale")
    assert (found.device, found.kind, dict(found.parameters)) == ("Ascend-snt9b / 910B", "Pointwise", {"scale": 0.5})
    assert found.dtypes == ("float16", "bfloat16", "float32")
    assert found.inputs[1].about == "低维偏置张量"
    assert found.requirements["x"] == "必须位于NPU设备上"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (f"- name: other\n- formula: {SUM}", "called 'other'"),
        (f"- formula: {SUM}\n- target speed-up: fast", "Give a number"),
        (f"- formula: {SUM}\n### Inputs\n| name | type |\n|--|--|\n| z | torch.Tensor |", "does not use it"),
        (f"- formula: {SUM}\n### Inputs\n| name | type |\n|--|--|\n| z | float |", "has no default"),
        ("- formula: out = x +", "line 1, column 10"),
        (f"- formula: {SUM}\n### Workloads\n| name | sizes |\n|--|--|\n| a | lead=big |", "no size of an axis"),
    ],
)
def test_what_a_document_gets_wrong_is_named(text, message):
    with pytest.raises(UsageError, match=message):
        definition_in(text, "made", "task.md")


def run(path: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, str(path), *words], capture_output=True, text=True, timeout=300, check=False)


@pytest.mark.parametrize("kind", [pytest.param("triton", marks=pytest.mark.campaign), "baseline"])
def test_the_functions_of_a_folder_run_on_their_own(kind, tmp_path):
    generate(load(), from_formula("gated", "out = silu(x[*lead, cols] * s[cols]) * a", {"a": 0.5}), tmp_path)
    path = tmp_path / "gated" / f"gated_{kind}.py"
    path.write_text(
        path.read_text()
        + "\n    import torch.nn.functional as F\n    x, s = torch.randn(2, 3, 70), torch.randn(70)\n"
        + "    torch.testing.assert_close(gated(x, s, a=2.0), F.silu(x * s) * 2.0)\n    gated(x, torch.randn(69))\n"
    )
    done = run(path)
    assert done.stdout.startswith("tensor([")
    assert "AssertionError: s has another cols than x" in done.stderr


@pytest.mark.campaign
def test_accuracy_and_performance_run_on_their_own(tmp_path, monkeypatch):
    """The baseline is made wrong afterwards: accuracy ends with exit code 1."""
    monkeypatch.setenv("OPFORGE_STORE", str(tmp_path / "store.sqlite"))
    generate(load(), from_formula("broadcast", SUM), tmp_path)
    folder = tmp_path / "broadcast"
    timed = run(folder / "broadcast_performance.py", "--dtype", "float32", "--budget", "0.2")
    assert timed.returncode == 0, timed.stderr
    assert "broadcast:cpp_rows against broadcast:torch_eager" in timed.stdout
    assert "times as long" in timed.stdout or "UNSURE" in timed.stdout
    eager = folder / "torch_eager.py"
    eager.write_text(eager.read_text().replace("x + bias", "x + 1.001 * bias"))
    assert run(folder / "broadcast_accuracy.py", "--quick", "--dtype", "float32").returncode == 1
