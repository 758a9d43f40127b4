"""Paper 2's experiments, as in its text and as in its code; one study per file, named after it."""
