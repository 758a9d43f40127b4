"""Where do *examples* come from? One file per source; the only package that downloads."""
