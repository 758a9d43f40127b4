"""The built-in studies, one per file; the file name is the name of the study."""
