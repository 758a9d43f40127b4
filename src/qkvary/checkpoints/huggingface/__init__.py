"""Our networks as models of transformers, and our caches for its models."""
