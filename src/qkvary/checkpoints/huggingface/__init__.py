"""Our networks as ``transformers`` models, and our caches for its models."""
