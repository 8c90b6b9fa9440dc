"""What an operator and its implementations are."""
