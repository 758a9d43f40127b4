"""Prepare documents for training, and show prepared sets.

A group of commands: ``data NAME`` is the file ``_data_NAME.py`` of this folder, which is imported
when it is called.
"""

from cyclopts import App

from qkvary.cli.main import FOLDER, summarise

PREFIX = "_data_"


def _build_group() -> App:
    group = App(name="data", help=summarise("data"), help_format="plaintext")
    for path in sorted(FOLDER.glob(f"{PREFIX}*.py")):
        name = path.stem.removeprefix(PREFIX)
        group.command(f"qkvary.cli.{path.stem}:command", name=name, help=summarise(path.stem))
    return group


command = _build_group()
