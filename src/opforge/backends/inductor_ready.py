"""Imported by a server before workers are forked from it: what Inductor would import and find out again in every one of them."""

from __future__ import annotations

import contextlib

import torch._inductor.codegen.cpp
import torch._inductor.codegen.wrapper
import torch._inductor.compile_fx
import torch._inductor.cpu_vec_isa
from torch._inductor.exc import InvalidCxxCompiler

# looked up once a process, by compilers and interpreters that are started for it: forked workers find it done
with contextlib.suppress(InvalidCxxCompiler):
    torch._inductor.cpu_vec_isa.valid_vec_isa_list()
