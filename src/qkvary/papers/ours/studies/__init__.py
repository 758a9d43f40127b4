"""Studies of this project's own questions; each file has one study, named after the file."""
