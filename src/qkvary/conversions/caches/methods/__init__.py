"""One file a method: the form of a layer, and the weights that make it from another layer."""
