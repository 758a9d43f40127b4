"""The networks: one attention layer, its cache, blocks, and one network a file."""
