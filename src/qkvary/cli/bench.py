"""Measure on this machine.

A group of commands: ``bench NAME`` is the file ``_bench_NAME.py`` of this folder, which is imported
when it is called.
"""

from qkvary.cli.main import build_group

command = build_group("bench", "_bench_")
