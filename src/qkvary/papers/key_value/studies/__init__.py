"""Its experiments by its text and by its code, one study a file; the file name is its name."""
