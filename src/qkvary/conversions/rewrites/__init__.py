"""The rewrites: each rewrite is one file, and is found by the name of the file."""
