"""Measuring, for benchmarks: a package, so that no module of that name is taken for it."""
