"""What is right: the reference in float64, with the bound that each element is held to."""
