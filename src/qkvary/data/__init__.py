"""Where do *examples* come from? One file per source; the only room that downloads."""
