"""A verb as a command: what of its signature is typed, and what is added to it."""

import inspect
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from cyclopts import App, CycloptsError, Parameter

from qkvary.api.arguments import verb
from qkvary.api.options import SILENT, Seeds, Terminal
from qkvary.api.results import Result
from qkvary.cli.app import make_command
from qkvary.reports.report import Report
from qkvary.text.numbers import Count


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """Rare parameters."""

    width: Annotated[Count, Parameter(name=("--width", "-w"))] = 7
    """The width in tokens."""
    kind: Literal["a", "b"] = "a"
    """The kind."""


SIZE = Size()


@verb
def measure(
    model: "Path | Size",
    labels: Annotated[tuple[str, ...], Parameter(name="--label")] = (),
    *,
    size: Size = SIZE,
    seeds: Seeds | None = None,
    share: float = 0.5,
    terminal: Terminal = SILENT,
) -> Result[dict[str, Any]]:
    """Measure something.

    Args:
        model: The model, or ``qk.load``.
        labels: The labels.
        size: The size.
        seeds: The seeds.
        share: The share.
        terminal: Shows the progress.
    """
    given = {
        "model": model,
        "labels": labels,
        "width": size.width,
        "kind": size.kind,
        "seeds": seeds,
        "share": share,
        "is_typed": terminal.command is not None,
    }
    report = Report(subject="measure", question="How much?", data=given)
    return Result(given, report, notices=("be careful",), exit_code=5)


def join(*names: str) -> Result[str]:
    """Join names.

    Args:
        names: The names.
    """
    return Result("", Report(subject="", question="", data={"names": names}), exit_code=5)


def run(*words: str, verb: Callable[..., Any] = measure) -> int:
    app = App(result_action="return_value")
    app.default(make_command(verb))
    return app(words, exit_on_error=False, print_error=False)


def found(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    assert run(*words, "--json") == 5
    printed = capsys.readouterr()
    assert "be careful" in printed.err
    return json.loads(printed.out)


def test_the_function_gets_what_is_typed(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("m", "x", "y", "-w", "32k", "--seeds", "0-4", "--kind", "b", "--share", "0.25")
    expected = {"model": "m", "labels": ["x", "y"], "width": 32_768, "kind": "b"}
    more = {"seeds": [0, 1, 2, 3, 4], "share": 0.25, "is_typed": True}
    assert found(capsys, *words).items() >= (expected | more).items()
    assert found(capsys, "m", "--label", "x", "--label", "y")["labels"] == ["x", "y"]


def test_names_in_a_row(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("x", "y", "--json", verb=join) == 5
    assert json.loads(capsys.readouterr().out)["names"] == ["x", "y"]


def test_what_is_not_typed_is_the_default(capsys: pytest.CaptureFixture[str]) -> None:
    expected = {"labels": [], "width": 7, "kind": "a", "seeds": None, "share": 0.5}
    assert found(capsys, "m").items() >= expected.items()
    assert measure("m").value["is_typed"] is False


@pytest.mark.parametrize(
    "words",
    [(), ("--model", "m"), ("m", "--share", "much"), ("m", "--kind", "c"), ("m", "--size", "3")],
)
def test_anything_else_is_refused(words: tuple[str, ...]) -> None:
    with pytest.raises(CycloptsError):
        run(*words)


def test_the_docstrings_are_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    run("--help")
    printed = capsys.readouterr().out
    for part in ("Measure something.", "The model, or qk.load.", "The width in tokens.", "--json"):
        assert part in printed
    assert "--size" not in printed
    assert "--terminal" not in printed


def test_options_are_values_or_keywords() -> None:
    one = measure("m", size=Size(width=3, kind="b")).value
    assert measure("m", width=3, kind="b").value == one
    assert measure("m", size=Size(width=3), kind="b").value == one
    assert measure("m").value["width"] == 7
    with pytest.raises(TypeError, match="unexpected keyword argument 'height'"):
        measure("m", height=3)
    assert measure("m", label="x").value == measure("m", labels="x").value
    with pytest.raises(
        TypeError, match="got label and labels, which are two spellings of one parameter"
    ):
        measure("m", label="x", labels="x")


def test_the_signature_of_a_verb_has_plain_types_and_accepts_what_the_verb_accepts() -> None:
    signature = inspect.signature(measure)
    assert signature.parameters["width"].annotation is int
    assert signature.parameters["model"].annotation == Path | Size
    assert signature.bind("m", size=Size(width=3), label="x").arguments["more"] == {
        "size": Size(width=3),
        "label": "x",
    }
    assert "width: The width in tokens." in str(measure.__doc__)


def test_two_groups_with_one_option_are_refused() -> None:
    def twice(*, size: Size = SIZE, other: Size = SIZE) -> Result[str]:
        """Never runs."""
        raise AssertionError(size, other)

    with pytest.raises(TypeError, match="expected each option once, got two of kind, width"):
        verb(twice)


def test_a_report_is_written_where_it_is_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    document = found(capsys, "m", "--out", str(tmp_path), "--format", "markdown")
    assert document["files"] == [str(tmp_path / "report.md")]
    assert run("m", "--out", str(tmp_path / "a.json")) == 5
    assert f"written: {tmp_path / 'a.json'}" in capsys.readouterr().out
    assert json.loads((tmp_path / "a.json").read_text("utf-8"))["model"] == "m"
    with pytest.raises(ValueError, match="expected --out with a folder"):
        run("m", "--format", "html")
