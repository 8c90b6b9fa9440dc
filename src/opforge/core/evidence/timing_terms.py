"""Terms: what is inside a time beside the computation. Times of other terms are not compared.

call   as a caller gets it: the call makes its result, by PyTorch's allocator, and returns it
out    `out=` given, into a preallocated output, as torch's functions do where they have an `out=`
"""

from __future__ import annotations

CALL = "call"
OUT = "out"
TERMS = (CALL, OUT)

WORDS = {CALL: "as a caller gets it", OUT: "out= given"}

MAKES_ITS_RESULT = ("torch", "compile", "library")
"""Backends whose calls have always made their result. Records from before terms were stated are read by this."""


def terms_or_then(terms: str, backend: str) -> str:
    """The terms of a time; of one that states none, what times of its backend were when none were stated.

    >>> terms_or_then("call", "cpp"), terms_or_then("", "cpp"), terms_or_then("", "torch")
    ('call', 'out', 'call')
    """
    return terms or (CALL if backend in MAKES_ITS_RESULT else OUT)
