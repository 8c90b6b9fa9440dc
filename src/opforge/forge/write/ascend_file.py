"""`NAME_ascend.py`, on request: the Triton kernel of a program on an NPU (Triton-Ascend). None has run on one."""

from __future__ import annotations

from opforge.forge.program.definition import Definition
from opforge.forge.program.ir import Program
from opforge.forge.write.emit import call


def ascend_file(definition: Definition, program: Program, kernel: str) -> tuple[str, str]:
    """The file's name and text. kernel: the Triton file's name, e.g. "triton_tiles"."""
    name, reads = definition.name, [one for one, _ in program.reads]
    parameters = [one for one, _ in program.parameters]
    count = len(program.writes)
    returned = "torch.Tensor" if count == 1 else f"tuple[{', '.join(['torch.Tensor'] * count)}]"
    given = [f"{one}: torch.Tensor" for one in reads]
    given += [f"{one}: float = {value!r}" for one, value in program.parameters]
    star = next((axis for axis in program.axes if axis.startswith("*")), "")
    body: list[str] = []
    sizes: dict[str, str] = {}
    for one, axes in program.reads:
        before = axes.index(star) if star in axes else len(axes)
        for at, axis in enumerate(axes):
            if axis.startswith("*"):
                end = f"{one}.ndim - {len(axes) - before - 1}"
                start = f"{before} " if before else ""
                sizes.setdefault(axis, f"*{one}.shape[{start}: {end}]")
            else:
                sizes.setdefault(axis, f"{one}.shape[{at if at < before else at - len(axes)}]")
    for write in program.writes:
        shape = ", ".join(sizes[axis] for axis in write.axes)
        body.append(f"{write.name} = {reads[0]}.new_empty([{shape}])")
    tensors = [(one, axes) for one, axes in program.reads] + [(write.name, write.axes) for write in program.writes]
    passed = [f"collapsed({one}, {_kept(axes)})" for one, axes in tensors]
    passed += [*(f"{one}={one}" for one in parameters), '**getattr(kernel, "DEFAULT", {})']
    body += [f"if {program.writes[0].name}.numel() > 0:", call("kernel.launch", passed, 8)[4:]]
    results = ", ".join(write.name for write in program.writes)
    return f"{name}_ascend.py", (
        f'"""{name} on an NPU: `{kernel}` beside this file, launched where its tensors are.\n\n'
        'Triton-Ascend takes the place of triton there, and torch_npu brings the device "npu". The kernel\n'
        "asks nothing of CUDA. It has run in Triton's interpreter and was compiled for NVIDIA's GPUs; it has\n"
        "not run on an NPU.\n"
        '"""\n\nimport importlib.util\nfrom pathlib import Path\n\nimport torch\n\n'
        "from opforge.backends.module_loading import load_source\n\n"
        'if importlib.util.find_spec("torch_npu"):\n    importlib.import_module("torch_npu")\n\n'
        'DEVICE = "npu" if hasattr(torch, "npu") and torch.npu.is_available() else "cpu"\n\n\n'
        "def collapsed(tensor: torch.Tensor, before: int, behind: int, star: bool) -> torch.Tensor:\n"
        '    """The tensor with its axes of any number as one, as the kernel has them."""\n'
        "    if not star:\n        return tensor.contiguous()\n"
        "    shape = tensor.shape\n"
        "    count = shape[before : tensor.ndim - behind].numel()\n"
        "    return tensor.contiguous().reshape(*shape[:before], count, *shape[tensor.ndim - behind :])\n\n\n"
        + call(f"def {name}", given, 0, f" -> {returned}:")
        + f'\n    """On the device of `{reads[0]}`: npu, or any that has a Triton."""\n'
        f'    kernel = load_source(Path(__file__).resolve().parent / "{kernel}.py")\n'
        + "".join(f"    {line}\n" for line in body)
        + f"    return {results}\n"
    )


def _kept(axes: tuple[str, ...]) -> str:
    """How many axes stand before the one of any number and behind it, and whether there is one."""
    at = next((number for number, axis in enumerate(axes) if axis.startswith("*")), -1)
    return f"{at}, {len(axes) - at - 1}, True" if at >= 0 else "0, 0, False"
