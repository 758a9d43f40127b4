"""The benchmark of decoding: a package, so that no module of that name is taken for it."""
