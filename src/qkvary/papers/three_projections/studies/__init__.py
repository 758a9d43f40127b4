"""Studies of paper 1's experiments, from its text; each is named after its file."""
