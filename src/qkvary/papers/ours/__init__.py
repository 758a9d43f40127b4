"""Studies of questions that the papers do not ask."""
