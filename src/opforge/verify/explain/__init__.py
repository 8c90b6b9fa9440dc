"""Why it failed: the likely cause, the neighbourhood of an element, a smaller case, the same values again."""
