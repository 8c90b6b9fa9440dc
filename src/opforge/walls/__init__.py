"""What shuts a process in (Linux): Landlock, mounts, namespaces, a filter on system calls; and tools that run so.

`inside.py` is a script, which imports the others by their bare names: they need the standard library alone, and little
of it.
"""
