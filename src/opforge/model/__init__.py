"""A whole model: what it is made of, its calls patched with opforge's operators, and the proof of what that gains."""
