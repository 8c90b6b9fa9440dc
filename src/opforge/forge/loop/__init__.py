"""The loop: an implementation made faster in rounds of one verified change each, on record."""
