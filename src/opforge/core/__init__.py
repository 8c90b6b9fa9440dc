"""The nouns. Standard library only; every other room imports this one and it imports none."""

from opforge.core.moved import forward_old_names

forward_old_names()
