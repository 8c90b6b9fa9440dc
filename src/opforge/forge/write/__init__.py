"""Files that are made of a program: a folder's definition, kernels, pages."""
