"""Paper 1's experiments as its text describes them; one study per file, named after the file."""
