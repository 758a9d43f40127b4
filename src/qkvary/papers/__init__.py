"""Published figures and claims, each with a verdict.

Each paper has a folder. The folder ``ours`` contains the studies of this project's own questions.
"""
