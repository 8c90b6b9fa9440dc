"""Lanes that hold one sum hold the same bits: read from the machine code of Triton's kernels, nothing is launched."""

import importlib.util
import re
import sys

import pytest

from opforge.registry import load

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="Triton is not installed: pip install triton==3.6.0"
)

PLAIN = """
import triton
import triton.language as tl


@triton.jit
def rows(x_ptr, y_ptr, out_ptr, stride, COLS: tl.constexpr, ROWS: tl.constexpr):
    rows, cols = tl.arange(0, ROWS), tl.arange(0, COLS)
    at = rows[:, None] * stride + cols[None, :]
    tl.store(out_ptr + rows, tl.sum(tl.load(x_ptr + at) * tl.load(y_ptr + at), axis=1))
"""


def fused_across_lanes(kernel, constants, tmp_path):
    """The instructions that add to a product of a lane's own what came from another lane, unrounded."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from opforge.inspect.resources import disassemble
    from opforge.inspect.tools import tool

    ones = {name: 1 for name in kernel.arg_names if name in ("so_e", "sg_e", "sd_n")}
    constants = {**ones, **constants}
    signature = {
        name: "constexpr" if name in constants else "*fp32" if name.endswith("_ptr") else "i32"
        for name in kernel.arg_names
    }
    compiled = triton.compile(ASTSource(kernel, signature, constants), GPUTarget("cuda", 90, 32), {"num_warps": 4})
    binary = tmp_path / "kernel.cubin"
    binary.write_bytes(compiled.asm["cubin"])
    found, arrived = [], set()
    for line in disassemble(binary, tool("cuobjdump")).splitlines():
        if words := re.search(r"SHFL\.\w+ \w+, (R\d+),", line):
            arrived.add(words[1])
        elif words := re.search(r"\b(F\w+) (R\d+), .*?(R\d+) ;", line):
            if words[1].startswith("FFMA") and words[3] in arrived:
                found.append(line.strip())
            arrived.discard(words[2])
    return found


def module_of(source, name, monkeypatch):
    spec = importlib.util.spec_from_file_location(name, source)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, name, module)
    spec.loader.exec_module(module)
    return module


def test_a_product_in_a_sum_across_lanes_is_rounded_by_one_lane_of_two(tmp_path, monkeypatch):
    """What the test below looks for is there where nobody minds it."""
    (tmp_path / "plain.py").write_text(PLAIN)
    kernel = module_of(tmp_path / "plain.py", "rows_of_products", monkeypatch).rows
    assert fused_across_lanes(kernel, {"COLS": 16, "ROWS": 32}, tmp_path)


def test_gradients_of_attention_round_each_product_once(tmp_path, monkeypatch):
    """Lanes write their sums to one address: racecheck found it on a GPU."""
    found = load().implementation("attention_backward", "triton_twokernels")
    kernel = module_of(found.source, "attention_backward_by_triton", monkeypatch).middles
    assert not fused_across_lanes(kernel, {"E": 16, "WHOLE_E": False, "BLOCK_M": 32}, tmp_path)
