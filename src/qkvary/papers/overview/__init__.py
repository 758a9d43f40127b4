"""An overview article about shared projections."""
