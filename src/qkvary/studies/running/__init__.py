"""Execution of runs: the store, the runner and its worker processes."""
