"""Where do *examples* come from? Each source has one file; only this package downloads."""
