"""Sources that a definition is read from: documents, traced functions, linalg text, a sentence."""
