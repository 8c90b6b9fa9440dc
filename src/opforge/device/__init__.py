"""What kernel files of several operators are made of: headers for C++ and CUDA (device/include/opforge), modules for
Triton, TileLang and PyTorch.

A module or header here is one way to walk over data, or one mainloop: blocks, tiles, whole rows, rows in blocks,
transposition, products of matrices. Nothing here knows an operator, and nothing is imported before a kernel is.
"""
