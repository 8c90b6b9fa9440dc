"""What the operators of attention share: mathematics, bounds, cases."""
