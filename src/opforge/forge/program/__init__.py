"""What is computed, before any language: definitions, formulas, the program and its layout."""
