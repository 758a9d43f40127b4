"""Studies that compare variants: their definitions, runs and results."""
