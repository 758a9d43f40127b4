"""One module per method: the form of a converted layer, and how to compute its weights."""
