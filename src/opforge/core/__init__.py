"""The nouns. Standard library only; every other room imports this one and it imports none."""
