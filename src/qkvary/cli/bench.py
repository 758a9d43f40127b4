"""Measure on this machine.

A group of commands: ``bench NAME`` is the file ``_bench_NAME.py`` of this folder, which is imported
when it is called.
"""

from cyclopts import App

from qkvary.cli.main import FOLDER, summarise

PREFIX = "_bench_"


def measurement_names() -> tuple[str, ...]:
    """Return the names of the measurements, from the files of this folder."""
    return tuple(sorted(path.stem.removeprefix(PREFIX) for path in FOLDER.glob(f"{PREFIX}*.py")))


def _build_group() -> App:
    group = App(name="bench", help=summarise("bench"), help_format="plaintext")
    for name in measurement_names():
        module = f"{PREFIX}{name}"
        group.command(f"qkvary.cli.{module}:command", name=name, help=summarise(module))
    return group


command = _build_group()
