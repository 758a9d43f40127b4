"""How is it *written*? Numbers, units, names and lists; the standard library alone."""
