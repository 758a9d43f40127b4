"""Adapts our networks to ``transformers``, and our caches to the models of ``transformers``."""
