"""Studies of paper 2's experiments, from its text or its code; each is named after its file."""
