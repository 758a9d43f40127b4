"""Its experiments as its text describes them, one study a file; the file name is its name."""
