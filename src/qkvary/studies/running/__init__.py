"""How runs are made: the store, the worker processes, and the loop that hands out runs."""
