"""What everything is said with: expressions, fields that are checked, units, errors, spans."""
