"""Its experiments by its text and by its code; one study per file, named after the file."""
