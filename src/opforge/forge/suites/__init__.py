"""Tasks of other benchmarks: read, generated, judged, exported."""
