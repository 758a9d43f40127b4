"""Every verb is a command and a name: it explains itself, refuses bad input, and speaks JSON."""

import inspect
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import get_type_hints

import pytest

import qkvary as qk
from qkvary.api.verbs import TARGETS
from qkvary.cli.main import main, summarise
from tests.cli.small_resnet import write_resnet
from tests.conftest import Runner, Typed
from tests.inference.stand_in_engine import write_engine
from tests.reference import llama2c

STUDY_FILE = '''"""A study so small that a test can run it."""

from qkvary.papers.key_value.protocols import synthetic_network, synthetic_training
from qkvary.studies.study import Setting, Study
from qkvary.tasks.config import SequenceTaskConfig

STUDY = Study(
    name="tiny <b>study</b>",
    question="Does a network of five channels learn anything in six steps?",
    description="For the tests of the command line.",
    settings=(
        Setting(
            name="copy-7",
            task=SequenceTaskConfig(
                name="copy",
                length=7,
                vocabulary=10,
                train_examples=64,
                validation_examples=32,
                test_examples=32,
            ),
            network=synthetic_network(d_model=8, num_layers=1, num_heads=2, length=7, dropout=0.0),
            training=synthetic_training(steps=6, batch_size=16, evaluate_every=3),
        ),
    ),
    variants=("QKV", "Q-K=V"),
    seeds=(0, 1),
)
'''

# What to type after each command; {study} is a file, {runs} a folder of runs, {model} a model.
CALLS: dict[str, list[str]] = {
    "analyze": ["{model}", "--text", "{text}", "--out", "{pages}/analysis.html"],
    "bench decode": ["{model}", "--rounds", "1", "--no-memory", "--no-transformers"],
    "bench quantized": ["{model}", "--text", "{text}", "--context", "9", "--quiet"],
    "claims": ["--document", "poster", "--verdict", "holds"],
    "convert": ["{model}", "--rewrite", "gauge", "--out", "{pages}/converted"],
    "cost": ["gpt2", "--context", "1k", "--batch", "4"],
    "data features": ["--weights", "{resnet}"],
    "data prepare": ["{text}", "--tokenizer", "bytes", "--out", "{pages}/prepared"],
    "data show": ["{prepared}"],
    "doctor": ["--out", "{runs}"],
    "evaluate": ["{model}", "--data", "{text}", "--tokens", "50", "--out", "{pages}/figures.json"],
    "export": ["{model}", "--out", "{pages}/exported"],
    "figures": ["key-value-figure-7", "--out", "{runs}", "--to", "{pages}", "--format", "html"],
    "generate": ["{model}", "the", "--tokens", "5"],
    "pack": ["{study}", "{pages}/packed.jsonl.xz", "--out", "{runs}"],
    "plan": ["300M", "--gpu", "a100-40gb", "--context", "32k", "--users", "100"],
    "published": ["table-7"],
    "report": ["{study}", "--out", "{runs}", "--to", "{pages}", "--format", "html"],
    "serve": ["{model}", "--program", "{engine}", "--port", "0"],
    "show": ["{run}", "--out", "{runs}"],
    "status": ["{study}", "--out", "{runs}"],
    "studies": [],
    "study": ["{study}", "--out", "{runs}", "--workers", "1"],
    "train": [
        *("lm-10m", "--data", "{prepared}", "--out", "{runs}", "--context", "8", "--steps", "2"),
        *("--batch-size", "2", "--validation-tokens", "20", "--test-tokens", "20"),
    ],
    "unpack": ["{packed}", "--out", "{pages}/unpacked"],
    "variants": [],
}
COMMANDS = sorted(TARGETS)


def leave_out_pictures(patch: pytest.MonkeyPatch) -> None:
    """To draw them takes longer than all else; tests/reports draws them all."""
    patch.setattr("qkvary.reports.files.DEFAULT_FORMATS", ("html", "csv"))
    patch.setattr("qkvary.training.utilization.SIDE_ON_CPU", 64)


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """A small study that has been run, and where it is."""
    folder = tmp_path_factory.mktemp("commands")
    folders = {name: name for name in ("runs", "pages", "model", "prepared")}
    files = {"study": "tiny.py", "packed": "packed.jsonl.xz", "text": "text.txt"}
    found = {name: str(folder / path) for name, path in (folders | files).items()}
    Path(found["study"]).write_text(STUDY_FILE, "utf-8")
    Path(found["text"]).write_text("the cat sat on the mat. " * 20, "utf-8")
    llama2c.write_stand_in(folder / "model")
    found["engine"] = str(write_engine(folder / "llama-server", mode="brief"))
    with pytest.MonkeyPatch.context() as patch:
        leave_out_pictures(patch)
        for line in (
            "study {study} --out {runs} --workers 1",
            "pack {study} {packed} --out {runs}",
            "data prepare {text} --tokenizer bytes --out {prepared}",
        ):
            assert main([word.format(**found) for word in line.split()]) == 0
    found["run"] = next(Path(found["runs"]).glob("*/*/record.json")).parent.name
    with pytest.MonkeyPatch.context() as patch:
        found["resnet"] = str(write_resnet(folder, patch))
        yield found


def words_of(name: str, places: dict[str, str]) -> list[str]:
    return [*name.split(), *(word.format(**places) for word in CALLS[name])]


def test_every_command_is_tried_here() -> None:
    assert set(CALLS) == set(COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_a_verb_explains_itself(name: str, typed: Typed) -> None:
    module, _, function = TARGETS[name].partition(":")
    verb = getattr(import_module(f"qkvary.{module}"), function)
    said = summarise(name)
    assert said.endswith(".")
    assert str(inspect.getdoc(verb)).splitlines()[0] == said
    assert " at 0x" not in str(inspect.signature(verb))
    assert {*get_type_hints(verb)} >= {*inspect.signature(verb).parameters} - {"more"}
    printed = typed(*name.split(), "--help")
    assert f"Usage: qkvary {name}" in printed
    assert "``" not in printed


def test_each_surface_has_what_the_other_has() -> None:
    functions = {name for name in qk.__all__ if inspect.isfunction(getattr(qk, name))}
    verbs = {one.partition(":")[2] for one in TARGETS.values()}
    # A loaded network cannot be printed.
    assert functions - verbs <= {"load"}
    assert verbs <= functions


@pytest.mark.parametrize("name", COMMANDS)
def test_bad_input_is_refused_in_a_sentence(name: str, typed: Typed) -> None:
    printed, said = typed.both(*name.split(), "--no-such-option", "x", code=2)
    assert printed == ""
    assert said.startswith("qkvary: ")
    assert len(said.splitlines()) <= 3
    assert "Traceback" not in said


@pytest.fixture
def few_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    leave_out_pictures(monkeypatch)


@pytest.mark.usefixtures("few_pictures")
@pytest.mark.parametrize(
    "name",
    ["bench quantized", "data features", "data show", "pack", "show", "unpack"],
)
def test_command_works_for_people(name: str, places: dict[str, str], typed: Typed) -> None:
    """Those that no page shows: ``test_shown_commands_run`` types the others."""
    assert typed(*words_of(name, places)).strip()


@pytest.mark.usefixtures("few_pictures")
@pytest.mark.parametrize("name", COMMANDS)
def test_json_is_one_document_and_nothing_else(
    name: str, places: dict[str, str], typed: Typed
) -> None:
    document = typed.json(*words_of(name, places))
    assert next(iter(document)) == "schema_version"
    assert document["schema_version"] == 1
    assert len(document) > 1


PRINTED = [
    ["plan", "gemma-4-31b", "--gpu", "h200", "--price", "5", "--full"],
    ["plan", "300M", "--gpu", "t4", "--goal", "training", "--full"],
    ["variants", "--full"],
]
"""Reports with wide tables, mathematics and prose."""


@pytest.mark.parametrize("words", PRINTED, ids=" ".join)
def test_lines_are_as_wide_as_the_screen_and_say_the_same(
    words: list[str], monkeypatch: pytest.MonkeyPatch, typed: Typed
) -> None:
    figures: list[set[str]] = []
    for width in (60, 132):
        monkeypatch.setenv("COLUMNS", str(width))
        printed = typed(*words)
        assert max(map(len, printed.splitlines())) <= width
        figures.append(set(re.findall(r"\d[\d,.]*", printed)))
    assert figures[0] == figures[1]


def test_an_ascii_locale_gets_ascii(run_python: Runner) -> None:
    code = f"from qkvary.cli.main import main; print([main(words) for words in {PRINTED!r}])"
    environment = {"PYTHONIOENCODING": "ascii", "LC_ALL": "C"}
    result = run_python(["-c", code], env=environment)
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.isascii()
    assert str([0] * len(PRINTED)) in result.stdout
