"""Imported by a server before workers for a GPU are forked from it: Triton, and the hash of all its files, which is
part of every name in its cache. libtriton alone has hundreds of megabytes: 0.3 s in each worker.
"""

from __future__ import annotations

import contextlib

import triton as triton

with contextlib.suppress(ImportError, AttributeError, OSError):
    # forked workers find it done: it is kept by an lru_cache
    from triton.runtime.cache import triton_key

    triton_key()
