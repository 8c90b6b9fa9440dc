"""The nouns, in three drawers: definition, evidence, language. Standard library only; every other room imports this
one, and it imports none. Beside the drawers lie `operator`, the public path of what an op.py is made of, and `philox`,
which kernels import: the name of a shared module is part of their hash.
"""

from opforge.core.moved import forward_old_names

forward_old_names()
