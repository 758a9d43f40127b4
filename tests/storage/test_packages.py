"""The advice on a missing package names what really brings it."""

import re
import sys
import tomllib
from pathlib import Path

import pytest

from qkvary.storage import packages
from qkvary.storage.packages import describe_missing
from tests.conftest import Runner

ROOT = Path(__file__).resolve().parents[2]
EXTRAS: dict[str, list[str]] = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))[
    "project"
]["optional-dependencies"]
DISTRIBUTIONS = {
    "PIL": "pillow",
    "huggingface_hub": "datasets",
    "llama_cpp": "llama-cpp-python",
    "lm_eval": "lm-eval",
    "vl_convert": "vl-convert-python",
}
"""The distributions of modules with other names; huggingface_hub comes with datasets."""


def distributions(extra: str) -> set[str]:
    return {re.split(r"[\[<>=,; ]", one)[0] for one in EXTRAS[extra]}


@pytest.mark.parametrize(("module", "extra"), packages._EXTRAS.items())
def test_an_extra_has_the_package_that_it_is_named_for(module: str, extra: str) -> None:
    assert DISTRIBUTIONS.get(module, module) in distributions(extra)
    assert describe_missing(f"{module}.part").endswith(f"run pip install 'qkvary[{extra}]'")


@pytest.mark.parametrize("module", ["pandas", "wandb"])
def test_a_package_in_no_extra_is_installed_by_its_name(module: str) -> None:
    expected = f"{module} is not installed: run pip install {module}"
    assert describe_missing(module) == expected


POSIX = {"fcntl", "grp", "pwd", "resource", "termios"}
BLOCK = "import sys\nfor name in {names!r}: sys.modules[name] = None\n"
NEEDED = "qkvary needs Linux or macOS, got {}, which has no fcntl; on Windows, run it in WSL"
SYSTEM = NEEDED.format(sys.platform)


def test_without_torch_a_public_name_says_what_to_install(run_python: Runner) -> None:
    code = BLOCK.format(names=("torch",)) + (
        "import qkvary as qk\n"
        "try: qk.Attention\n"
        "except ModuleNotFoundError as error: print(error, '/', error.name)\n"
        "print(qk.cost('gpt2').value.rows[0].parameters)\n"
    )
    result = run_python(["-c", code])
    assert result.stderr == ""
    assert (
        result.stdout.splitlines()[0]
        == "torch is not installed: run pip install 'qkvary[train]' / torch"
    )


def test_other_systems_are_named_before_anything_is_missing(run_python: Runner) -> None:
    code = BLOCK.format(names=tuple(POSIX)) + (
        "from qkvary.cli.main import main\n"
        "for words in (['--help'], ['cost', 'gpt2'], ['doctor'], ['status']): print(main(words))\n"
        "import qkvary as qk\n"
        "try: qk.train\n"
        "except ImportError as error: print(error)\n"
    )
    result = run_python(["-c", code])
    lines = result.stdout.splitlines()
    assert lines[-5:] == ["0", "2", "2", "2", SYSTEM]
    assert result.stderr.splitlines() == [f"qkvary: {SYSTEM}"] * 3
