"""The decode benchmark: what is measured, how, and what follows from it."""
