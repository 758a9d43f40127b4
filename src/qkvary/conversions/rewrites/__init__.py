"""Exact rewrites of a network; each file is one rewrite, named after the file."""
