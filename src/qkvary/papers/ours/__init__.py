"""Our own questions."""
