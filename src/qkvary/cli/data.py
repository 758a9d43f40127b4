"""Prepare documents for training, and show prepared sets.

A group of commands: ``data NAME`` is the file ``_data_NAME.py`` of this folder, which is imported
when it is called.
"""

from qkvary.cli.main import build_group

command = build_group("data", "_data_")
