"""The studies that ship with qkvary, one a file; a study is found by the name of its file."""
