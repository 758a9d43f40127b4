"""The advice on a missing package names what really brings it."""

import re
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from qkvary.storage import packages
from qkvary.storage.packages import describe_missing

ROOT = Path(__file__).resolve().parents[2]
EXTRAS: dict[str, list[str]] = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))[
    "project"
]["optional-dependencies"]
DISTRIBUTIONS = {
    "PIL": "pillow",
    "huggingface_hub": "datasets",
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


def test_every_distribution_of_an_extra_is_known() -> None:
    named = {DISTRIBUTIONS.get(module, module) for module in packages._EXTRAS}
    assert set().union(*map(distributions, EXTRAS)) - named == set()


@pytest.mark.parametrize("module", ["pandas", "wandb"])
def test_a_package_in_no_extra_is_installed_by_its_name(module: str) -> None:
    expected = f"{module} is not installed: run pip install {module}"
    assert describe_missing(module) == expected


BLOCK = "import sys\nfor name in {names!r}: sys.modules[name] = None\n"
SYSTEM = (
    "qkvary needs Linux or macOS, got {platform}, which has no fcntl; on Windows, run it in WSL"
).format(platform=sys.platform)
Runner = Callable[..., "subprocess.CompletedProcess[str]"]


def test_without_torch_a_public_name_says_what_to_install(run_python: Runner) -> None:
    code = BLOCK.format(names=("torch",)) + (
        "import qkvary as qk\n"
        "try: qk.Attention\n"
        "except ModuleNotFoundError as error: print(error, '/', error.name)\n"
        "print(qk.cost('gpt2').value.rows[0].parameters)\n"
    )
    result = run_python(["-c", code])
    assert result.stderr == ""
    assert result.stdout.splitlines()[0] == "torch is not installed: run pip install 'qkvary[train]' / torch"


def test_other_systems_are_named_before_anything_is_missing(run_python: Runner) -> None:
    """Every module of the package imports, or says in one sentence which systems it needs."""
    code = BLOCK.format(names=("fcntl", "pwd", "resource")) + (
        "import importlib, pkgutil, qkvary\n"
        "from qkvary.storage.errors import SystemNotSupportedError\n"
        "for one in pkgutil.walk_packages(qkvary.__path__, 'qkvary.', onerror=print):\n"
        "    if one.name.endswith(('__main__', 'tokenizer_process')): continue\n"
        "    try: importlib.import_module(one.name)\n"
        "    except SystemNotSupportedError as error: said = str(error)\n"
        "print(said)\n"
        "from qkvary.cli.main import main\n"
        "for words in (['--help'], ['cost', 'gpt2'], ['doctor']): print(main(words))\n"
    )
    result = run_python(["-c", code])
    lines = result.stdout.splitlines()
    assert SYSTEM in lines
    assert lines[-2:] == ["2", "2"]
    # Libraries print too.
    errors = [line for line in result.stderr.splitlines() if line.startswith("qkvary")]
    assert errors == [f"qkvary: {SYSTEM}"] * 2
