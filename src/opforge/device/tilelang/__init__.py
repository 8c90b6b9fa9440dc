"""What TileLang kernels of several operators are made of: programs around an element, and macros over rows."""
