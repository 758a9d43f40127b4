"""Where do *examples* come from? One file per data set; the only room that would download."""
