"""What transformers can do with our networks, and what our caches can do for its models."""
