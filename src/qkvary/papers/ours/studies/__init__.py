"""Our studies; one per file, named after the file."""
