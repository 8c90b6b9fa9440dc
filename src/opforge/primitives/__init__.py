"""What kernel files of several operators are made of, in Triton's and TileLang's languages: ways to walk over data, and programs around them.

A module here is one way: blocks, tiles, whole rows, rows in blocks, transposition, products of matrices. C++ and CUDA have
theirs in include/opforge. Nothing here knows an operator, and nothing is imported before a kernel is.
"""
