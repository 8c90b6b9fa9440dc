"""What was found of an implementation: verdicts, times, comparisons, records."""
