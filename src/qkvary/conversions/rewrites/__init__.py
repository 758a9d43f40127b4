"""The rewrites: one file each, found by its name."""
