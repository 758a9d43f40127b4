"""Loads training and test examples, with one module per source. All downloads are made here."""
