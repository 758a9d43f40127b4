"""The networks: one attention layer, its cache, blocks, and networks (one per file)."""
