"""What Triton and Gluon kernels of several operators are made of: `@triton.jit` functions, and grids and configs for
the launch.
"""
