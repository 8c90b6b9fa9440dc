"""Benchmarks' own documents, read strictly and written back as they were."""
