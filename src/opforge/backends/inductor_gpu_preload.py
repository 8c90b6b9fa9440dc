"""Imported by a server before workers for a GPU are forked from it: what Inductor would import again in every one of
them.
"""

from __future__ import annotations

from opforge.backends.torch_private import warm_inductor

# forked workers find it done
warm_inductor(cpu=False)
