"""Transformers whose attention shares its query, key and value projections.

The public surface is one page: docs/guide/api.md. Importing this package imports nothing else.
"""
