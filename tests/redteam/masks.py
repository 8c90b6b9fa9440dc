"""Planted bugs of one kind in every kernel there is: masks that are gone, and one element more.

Nothing is written by hand for an operator, so that a new one is covered by itself:
    triton   the interpreter's loads, stores or both forget their masks, or let one element more through: what the
             source does without them
    cpp, cuda   the entry point gets tensors that are one longer along an axis, or as long as whole vectors: loops that
                run to n + 1, blocks without a bound
TileLang is not asked: its compiler guards every access by the tensor's own shape. Of a softmax whose stores may go one
column farther the guard behind the output was untouched, and the result was right.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from opforge.backends import Missing, backend
from opforge.core.definition.implementation import Implementation
from opforge.core.definition.operator import Operator
from opforge.core.definition.shapes import tokens
from opforge.core.evidence.verdict import FAILURES, Unsupported
from opforge.registry import Home, Registry, load
from opforge.runner import Isolated
from opforge.verify import CaseCache, verify
from opforge.verify.cases.hidden import QUICK

EFFORT = replace(QUICK, own=True, elements=1 << 11, emulated_elements=1 << 9, repeats=8, shrink_s=0.0)

TRITON = """

def _forgetful(load, store, widened):
    import numpy
    from triton.runtime import interpreter

    builder = interpreter.InterpreterBuilder
    masked_load, masked_store = builder.create_masked_load, builder.create_masked_store

    def wide(mask):
        return interpreter.TensorHandle(widened(numpy.asarray(mask.data, dtype=bool), numpy), mask.dtype)

    def create_masked_load(self, ptrs, mask, *rest, **named):
        return masked_load(self, ptrs, wide(mask), *rest, **named)

    def create_masked_store(self, ptrs, value, mask, *rest, **named):
        return masked_store(self, ptrs, value, wide(mask), *rest, **named)

    if load:
        builder.create_masked_load = create_masked_load
    if store:
        builder.create_masked_store = create_masked_store


def _everything(mask, numpy):
    return numpy.ones_like(mask)


def _one_more(mask, numpy):
    wide = mask.copy()
    if wide.ndim:
        wide[..., 1:] |= mask[..., :-1]
    return wide


import os

if os.environ.get("TRITON_INTERPRET") == "1":
    _forgetful(%s)
"""
TRITON_KINDS = {
    "load": "True, False, _everything",
    "store": "False, True, _everything",
    "both": "True, True, _everything",
    "one_more": "True, True, _one_more",
}
NATIVE = """

// The tensors of a call, some of their axes longer than they are.
extern "C" __attribute__((visibility("default"))) int __tvm_ffi_run(void* self, const TVMFFIAny* args, int32_t count,
    TVMFFIAny* result) {
  static const int axes[][2] = {%s};
  TVMFFIAny changed[64];
  DLTensor tensors[64];
  int64_t shapes[64][8], strides[64][8];
  for (int32_t i = 0; i < count; ++i) {
    changed[i] = args[i];
    const DLTensor* whole = args[i].type_index == kTVMFFIDLTensorPtr ? static_cast<const DLTensor*>(args[i].v_ptr)
                            : args[i].type_index == kTVMFFITensor    ? TVMFFITensorGetDLTensorPtr(args[i].v_obj)
                                                                     : nullptr;
    if (whole == nullptr) continue;
    tensors[i] = *whole;
    int64_t step = 1;
    for (int d = whole->ndim - 1; d >= 0; --d) {
      shapes[i][d] = whole->shape[d];
      strides[i][d] = whole->strides != nullptr ? whole->strides[d] : step;
      step *= whole->shape[d];
    }
    for (const auto& axis : axes)
      if (axis[0] == i && axis[1] < whole->ndim) shapes[i][axis[1]] = %s;
    tensors[i].shape = shapes[i];
    tensors[i].strides = strides[i];
    changed[i].type_index = kTVMFFIDLTensorPtr;
    changed[i].v_ptr = &tensors[i];
  }
  return __tvm_ffi_original(self, changed, count, result);
}
"""
NO_BOUND = {"attention_decode": ("pages", "max_pages"), "attention_varlen": ("total_k",)}
"""Extents that bound nothing that a kernel reads: lengths and offsets do, and a longer pool of pages is no bug."""
NATIVE_KINDS = {"one_more": "shapes[i][axis[1]] + 1", "vector": "(shapes[i][axis[1]] + 31) / 32 * 32"}


@dataclass(frozen=True, kw_only=True)
class Planted:
    """One planted bug: whether its verdict is a failure, which, and how long it took in seconds. `found` is None where
    it did not run.
    """

    operator: str
    implementation: str
    dtype: str
    found: bool | None
    verdict: str
    seconds: float


def planted(operator: Operator, implementation: Implementation) -> Iterator[tuple[str, str]]:
    """The kind and the source of every bug of this implementation."""
    text = implementation.source.read_text(encoding="utf-8")
    if implementation.backend == "triton":
        for kind, arguments in TRITON_KINDS.items():
            yield kind, text + TRITON % arguments
    elif implementation.backend in ("cpp", "cuda") and "OPFORGE_EXPORT(run," in text:
        specs = [*operator.inputs, *operator.outputs]
        for axis in operator.free_axes:
            if axis in NO_BOUND.get(operator.name, ()):
                continue
            places = [
                (number, place)
                for number, spec in enumerate(specs)
                for place, token in enumerate(tokens(spec.shape))
                if axis in token.split("*")
            ]
            for kind, extent in NATIVE_KINDS.items():
                rows = ", ".join(f"{{{number}, {place}}}" for number, place in places)
                yield (
                    f"{kind}_{axis}",
                    text.replace("OPFORGE_EXPORT(run,", "OPFORGE_EXPORT(original,") + NATIVE % (rows, extent),
                )


def _is_kernel(file: str) -> bool:
    return file.partition("_")[0] in ("triton", "tilelang", "cuda", "cpp", "torch", "library")


def write_home(
    folder: Path, registry: Registry, operators: Sequence[str], backends: Sequence[str], kinds: Sequence[str] = ()
) -> Registry:
    """The package's own definitions, with the planted bugs as their implementations. `kinds`: only those that begin so;
    () for all.
    """
    for name in operators:
        operator = registry.operator(name)
        assert operator.folder is not None
        # the kernels themselves stay behind: a file beside op.py is an implementation, named or not
        shutil.copytree(
            operator.folder, folder / name, ignore=lambda _, names: [one for one in names if _is_kernel(one)]
        )
        names = []
        for implementation in registry.implementations(name):
            if implementation.backend not in backends or implementation.arch:
                continue
            for kind, text in planted(operator, implementation):
                if kinds and not kind.startswith(tuple(kinds)):
                    continue
                names.append(f"{implementation.name}_{kind}")
                (folder / name / f"{names[-1]}{implementation.source.suffix}").write_text(text, encoding="utf-8")
        definition = folder / name / "op.py"
        definition.write_text(
            definition.read_text(encoding="utf-8")
            # the operator of its gradients need not be in this home
            + "\nimport dataclasses\n\n"
            + f"operator = dataclasses.replace(operator, implementations={tuple(names)!r},"
            + " gradient=None, further_gradients=())\n",
            encoding="utf-8",
        )
    return Registry((Home(folder, "red team"),))


def hunt(
    folder: Path,
    *,
    operators: Sequence[str] = (),
    backends: Sequence[str] = ("triton", "cpp", "cuda"),
    kinds: Sequence[str] = (),
    dtypes: Sequence[str] = (),
) -> Iterator[Planted]:
    """Verify every planted bug, on the CPU: interpreted, emulated, or as it is."""
    own = load()
    names = tuple(operators) or own.names()
    registry = write_home(
        folder,
        own,
        names,
        [name for name in backends if not isinstance(backend(name).execution_mode("cpu"), Missing)],
        kinds,
    )
    with Isolated() as host:
        for name in names:
            bench = CaseCache(registry=registry, operator=registry.operator(name), host=host, device="cpu")
            try:
                for implementation in registry.implementations(name):
                    for dtype in bench.operator.dtypes:
                        if dtypes and dtype not in dtypes:
                            continue
                        began = time.perf_counter()
                        verdict = verify(bench, implementation, dtype, effort=EFFORT)
                        found = None if isinstance(verdict, Unsupported) else isinstance(verdict, FAILURES)
                        words = type(verdict).__name__
                        yield Planted(
                            operator=name,
                            implementation=implementation.name,
                            dtype=dtype,
                            found=found,
                            verdict=words,
                            seconds=time.perf_counter() - began,
                        )
            finally:
                bench.close()
