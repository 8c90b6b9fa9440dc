"""Imported by a server before workers are forked from it: what Inductor would import and find out again in every one of
them. For another device than a CPU: opforge.backends.inductor_gpu_preload.
"""

from __future__ import annotations

from opforge.backends.torch_private import warm_inductor

# forked workers find it done
warm_inductor(cpu=True)
