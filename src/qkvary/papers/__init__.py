"""What was published? The papers' figures as data, recomputed, with their rounding and verdicts."""
