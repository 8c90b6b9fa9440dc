"""What definitions share: bounds of arithmetic, families' mathematics, cases, workloads, tolerances. For op.py
alone: no kernel imports it, and no toolchain is imported here.
"""
