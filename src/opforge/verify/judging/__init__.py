"""What came out: each element against its bound, guards, repeats, library calls."""
