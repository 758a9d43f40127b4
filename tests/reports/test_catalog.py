import re
from pathlib import Path

import pytest

from qkvary.reports import catalog
from qkvary.reports.catalog import PLAN_FORMATS, make_plan_files
from tests.conftest import Runner
from tests.reports.plan_examples import make_plan

WITHOUT = """
import sys
sys.modules[{missing!r}] = None
from qkvary.storage.errors import UsageError
from qkvary.reports.catalog import make_plan_files
from tests.reports.plan_examples import make_plan
try:
    print(*make_plan_files(make_plan(), {formats!r}))
except UsageError as error:
    print(error)
"""


def run_without(run_python: Runner, missing: str, formats: tuple[str, ...]) -> str:
    code = WITHOUT.format(missing=missing, formats=formats)
    done = run_python(["-c", code], env={"PYTHONPATH": "src:."})
    assert done.stderr == ""
    return done.stdout.strip()


def test_the_page_comes_first_and_formats_in_any_order_give_the_same() -> None:
    files = make_plan_files(make_plan(), ("svg", "html"))
    assert next(iter(files)) == "plan.html"
    assert files == make_plan_files(make_plan(), ("html", "svg"))
    assert make_plan_files(make_plan(), ()) == {}


def test_unknown_format_names_the_choices() -> None:
    message = "expected formats out of html, svg, png, pdf, got 'docx'"
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        make_plan_files(make_plan(), ("docx",))  # type: ignore[arg-type]


def test_every_maker_is_a_file_of_this_folder() -> None:
    folder = Path(catalog.__file__).parent
    assert {name for _, made in catalog._MAKERS.values() for name in made} == set(PLAN_FORMATS)
    for maker in catalog._MAKERS:
        assert (folder / f"{maker}.py").is_file()


def test_without_matplotlib_the_page_can_still_be_written(run_python: Runner) -> None:
    assert run_without(run_python, "matplotlib", ("html",)) == "plan.html"


def test_without_matplotlib_figures_say_what_brings_it(run_python: Runner) -> None:
    assert run_without(run_python, "matplotlib", PLAN_FORMATS) == (
        "matplotlib is not installed: pip install 'qkvary[train]' brings it"
    )


def test_without_jinja2_the_page_says_what_brings_it(run_python: Runner) -> None:
    assert run_without(run_python, "jinja2", ("html",)) == (
        "jinja2 is not installed: pip install 'qkvary[train]' brings it"
    )
