"""How far arithmetic may be off, by what is computed: sums, rows, scans, formulas, FP8."""
