"""Text formatting: numbers, units, names and lists; standard library only."""
