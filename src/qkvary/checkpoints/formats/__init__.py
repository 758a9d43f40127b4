"""Models that others stored: one file per format, found by its name."""
