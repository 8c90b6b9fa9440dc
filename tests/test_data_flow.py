"""Which of PyTorch's work counts against a kernel of another backend: what an output is made of."""

from __future__ import annotations

import pytest
import torch

from opforge.backends.imported_symbols import is_foreign
from opforge.runner.worker.dispatch_trace import traced
from opforge.runner.worker.write_ledger import Ledger
from opforge.verify.judging.fallback import library_calls

X = torch.arange(12.0).reshape(3, 4)
FOREIGN = """
sgemm_ SGEMM sgemm_64 sgemm_64_ sgemm_batch_ cblas_sgemm vsExp vmsExp dnnl_sgemm dl_iterate_phdr syscall clone clone3
dlsym dlopen dlmopen system fork execve open openat fopen read mprotect getenv environ _r_debug PyObject_Call signal
aoti_torch_cpu_mm_out _ZN2at3mmERKNS_6TensorES2_ _ZNSt6vectorIN2at6TensorESaIS1_EED1Ev cublasSgemm_v2 snrm2_
TVMFFIFunctionGetGlobal TVMFFIFunctionCall _ZNSt14basic_ifstreamIcSt11char_traitsIcEEC1EPKcSt13_Ios_Openmode
_ZN3tbb6detail2r15spawn process_vm_readv _rtld_global
"""
OWN = """
expf sincosf lgammaf llroundf __expf_finite _ZGVdN8v_expf isnanf malloc memcpy __memcpy_chk printf __printf_chk qsort
clock_gettime GOMP_parallel omp_get_thread_num __kmpc_fork_call pthread_mutex_lock __cxa_atexit _Znwm _ZdlPvm
_ZNSt6thread15_M_start_threadESt10unique_ptrINS_6_StateESt14default_deleteIS1_EEPFvvE _ZSt4cout _ZNSolsEf
_ZTVN10__cxxabiv120__si_class_type_infoE _ZTISt9exception _ZSt20__throw_length_errorPKc __extendhfsf2 __truncsfbf2
__popcountdi2 __udivti3 __floatundisf __cpu_model __stack_chk_fail _Unwind_Resume TVMFFIErrorSetRaisedFromCStr
TVMFFIEnvGetStream TVMFFIObjectDecRef _ITM_registerTMCloneTable __tls_get_addr
"""


def test_a_library_may_ask_for_what_kernels_need_and_nothing_else():
    """A list of forbidden names had sgemm_ and not SGEMM, sgemm_64, vsExp, dl_iterate_phdr or syscall."""
    assert [name for name in FOREIGN.split() if not is_foreign(name)] == []
    assert [name for name in OWN.split() if is_foreign(name)] == []


def _checked(y):
    assert bool((X.max() < 100.0).item()) and not bool(torch.isnan(X).any())
    assert int(torch.tensor([3, 5]).max()) == 5


def _scaled(y):
    # the largest value is a number that the kernel is given
    y.fill_(X.abs().max().item())


@pytest.mark.parametrize(
    ("launcher", "counted"),
    [
        (_checked, ()),
        (lambda y: y.copy_(X.exp()), ("aten.exp.default (1 time)",)),
        (lambda y: torch.mul(X, 2.0, out=y), ("aten.mul.out (1 time)",)),
        (lambda y: y.copy_(torch.empty(3, 4).copy_(X.sin()).clone()), ("aten.sin.default (1 time)",)),
        (lambda y: X.cos(), ("aten.cos.default (1 time)",)),
    ],
)
def test_what_an_output_is_made_of_counts_and_what_looks_at_an_argument_does_not(launcher, counted):
    """A check of a range in a launcher was called a fallback to PyTorch."""
    y = torch.full((3, 4), float("nan"))
    assert library_calls(traced(lambda: launcher(y), results=lambda: {"y": y})) == counted


def test_a_number_that_pytorch_computed_counts_where_a_kernel_is_given_it():
    """A quantiser's scale is half of its work."""
    from opforge.runner.worker.data_flow import DataFlow

    flow = DataFlow()
    largest = X.max()
    flow.operation("aten.max.default", torch.ops.aten.max.default, (X,), {}, largest)
    flow.operation("aten.gt.Scalar", torch.ops.aten.gt.Scalar, (largest, 1.0), {}, largest > 1.0)
    scalar = torch.ops.aten._local_scalar_dense.default
    flow.operation("aten._local_scalar_dense.default", scalar, (largest,), {}, largest.item())
    assert library_calls(flow.counted({"aten.max.default": 1})) == ()
    flow.launch([torch.empty(3), 7, 11.0])
    assert library_calls(flow.counted({"aten.max.default": 1})) == ("aten.max.default (1 time)",)


class _Everywhere:
    """What an interpreter stored: all bytes of some rows of y."""

    def __init__(self, rows):
        self.rows = rows

    def written(self, base, count):
        marks = torch.zeros(count, dtype=torch.bool).view(3, -1)
        marks[self.rows] = True
        return marks.flatten()


@pytest.mark.parametrize(
    ("moved", "rows", "left"),
    [
        (lambda y: y.copy_(X.t().reshape(3, 4)), [], 12),
        (lambda y: y.copy_(X), [1], 8),
        (lambda y: y.copy_(X), [0, 1, 2], 0),
        (lambda y: y.zero_(), [], 0),
        (lambda y: y[:, 1:].copy_(torch.cat([X[:, :2], torch.zeros(3, 1)], dim=1)), [2], 4),
        (lambda y: y.copy_(torch.zeros(3, 4).half()), [], 0),
    ],
)
def test_what_pytorch_moved_into_an_output_is_no_kernels_work(moved, rows, left):
    """A transposed copy by PyTorch, of which a kernel wrote one element again, counted as verified by the
    interpreter.
    """
    y = torch.full((3, 4), float("nan"))
    book = Ledger([y], threads=99)

    def launcher():
        moved(y)
        book.flow.stored([y], _Everywhere(rows))

    traced(launcher, book, results=lambda: {"y": y})
    found = [words for words in book.over([y]) if "moved" in words]
    assert found == ([f"PyTorch moved {left} of 12 elements of an output there, and no kernel"] if left else [])
