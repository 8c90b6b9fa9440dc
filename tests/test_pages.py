"""Pages that judging is given once, and not anew for each tensor."""

import ctypes
import resource
import threading

import pytest

from opforge.verify.judging.pages import pages_kept

BYTES = 64 << 20

pytestmark = pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="malloc is not glibc's here")


def faults():
    """Pages that this process was given for filling 64 MB."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    ctypes.memset(buffer := LIBC.malloc(BYTES), 1, BYTES)
    LIBC.free(buffer)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


LIBC = ctypes.CDLL(None)
LIBC.malloc.restype, LIBC.malloc.argtypes, LIBC.free.argtypes = ctypes.c_void_p, [ctypes.c_size_t], [ctypes.c_void_p]


def test_the_second_tensor_gets_the_pages_of_the_first():
    """26 of 54 s of CPU were the system's, zeroing what it had taken back a moment before. Afterwards it is as ever."""
    fresh = faults()
    with pages_kept():
        faults()
        with pages_kept():
            faults()
        kept = faults()
    assert kept <= fresh / 10
    assert faults() + faults() >= fresh


def test_who_leaves_first_takes_nothing_from_the_other():
    """Several cases may be judged at once."""
    entered, left = threading.Event(), threading.Event()

    def other():
        with pages_kept():
            entered.set()
            left.wait(10)

    thread = threading.Thread(target=other)
    thread.start()
    entered.wait(10)
    with pages_kept():
        faults()
    kept = faults()
    left.set()
    thread.join()
    assert kept <= faults() / 10
