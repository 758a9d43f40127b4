"""Repeats paper 1's experiments from its text; each study is named after its file."""
