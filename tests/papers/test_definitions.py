"""The files of studies that ship with qkvary."""

from qkvary.studies import catalog
from qkvary.studies.catalog import study_names


def test_files_of_definitions_hold_a_study_and_nothing_else_public() -> None:
    for name in study_names():
        module = catalog._import_definition(name)  # pyright: ignore[reportPrivateUsage]
        own = [
            key
            for key, value in vars(module).items()
            if not key.startswith("_") and getattr(value, "__module__", "") == module.__name__
        ]
        assert own == [], module.__name__
