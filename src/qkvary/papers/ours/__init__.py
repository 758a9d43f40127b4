"""Studies of our own questions, which the papers do not ask."""
