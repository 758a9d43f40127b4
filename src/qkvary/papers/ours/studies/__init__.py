"""Our studies, one a file; the file name is its name."""
