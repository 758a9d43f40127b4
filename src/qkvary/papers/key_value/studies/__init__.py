"""Repeats paper 2's experiments from its text or its code; each study is named after its file."""
