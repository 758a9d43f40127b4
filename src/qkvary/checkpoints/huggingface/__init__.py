"""Our networks as ``transformers`` models, and our caches for the models of ``transformers``."""
