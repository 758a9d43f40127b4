"""Evaluation of language models: perplexity, length extrapolation, and tasks with questions."""
