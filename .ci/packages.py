"""Builds the wheel and the source distribution, and installs them into empty environments.

    python .ci/packages.py                         # the core on each Python on PATH, extras on 3.11
    python .ci/packages.py core train,cluster      # these environments; --help lists all names

Needs a package index. Prints one line for each environment, and ends with 1 when one fails.
"""

from __future__ import annotations

import argparse
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PYTHONS = ("python3.11", "python3.12", "python3.13")
CORE_BYTES = 20_000_000
"""The maximum size of the core and its dependencies on disk, without bytecode."""
INSTALLERS = {"pip", "setuptools", "_distutils_hack", "pkg_resources"}
"""Packages that every new environment has."""
WITHOUT = "import importlib.util, sys; sys.exit(importlib.util.find_spec('torch') is not None)"
CORE = (
    "--version",
    "--help",
    "plan lm-300m --gpu h100-80gb --json",
    "cost lm-300m",
    "cost tiny-k",
)
EXTRAS = {
    "train": ("generate tiny-k 'Once upon' --tokens 20", "evaluate tiny-k --data README.md"),
    "train,data": ("data prepare README.md --tokenizer bytes --out set",),
    "train,track": (
        "train lm-10m --data README.md --steps 1 --batch-size 1 --context 8 --log tensorboard",
        "train lm-10m --data README.md --steps 2 --batch-size 1 --context 8 --log trackio",
    ),
    "train,cluster": ("study quickstart --dry-run --executor ray",),
    "train,hf": ("export tiny-k --out exported",),
    "train,export": (
        "export tiny --to gguf --out tiny.gguf",
        "generate tiny.gguf 'Once upon' --tokens 20",
    ),
    "train,eval": ("evaluate --help",),
    "train,images": ("studies",),
    "train,serve": ("serve --help",),
    "train,translation": ("studies",),
}
"""Commands to run with each extra."""
# The commands above need no cluster, images, engine or translations, so they import none of these.
IMPORTS = {
    "train,cluster": "import ray, submitit",
    "train,images": "import PIL.Image",
    "train,serve": "import llama_cpp",
    "train,translation": "import sacrebleu",
}
"""Imports to try with an extra whose commands do not need its packages."""


def build(folder: Path) -> tuple[Path, Path]:
    """Builds the source distribution, and the wheel from it; returns the wheel and the source."""
    tools = make_environment("python3.11", folder / "tools", "build")
    run(tools, "-m", "build", "--outdir", str(folder / "dist"), str(ROOT), cwd=folder)
    (wheel,) = (folder / "dist").glob("*.whl")
    (source,) = (folder / "dist").glob("*.tar.gz")
    return wheel, source


def make_environment(python: str, folder: Path, *packages: str) -> Path:
    """Makes an empty environment with packages; returns its interpreter."""
    subprocess.run([python, "-m", "venv", folder], check=True)
    interpreter = folder / "bin" / "python"
    run(interpreter, "-m", "pip", "install", "-q", *packages, cwd=folder)
    return interpreter


def try_out(interpreter: Path, command: str, folder: Path) -> None:
    """Runs a command of qkvary without data and with an empty home."""
    run(interpreter, "-m", "qkvary", *shlex.split(command), cwd=folder, env={"HOME": str(folder)})


def run(
    interpreter: Path, *arguments: str, cwd: Path, env: Mapping[str, str] | None = None
) -> None:
    """Runs an interpreter outside the source tree.

    Raises:
        SystemExit: if it fails.
    """
    command = [str(interpreter), *arguments]
    done = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{shlex.join(command)} ended with {done.returncode}\n{done.stderr}")


def count_bytes(interpreter: Path) -> tuple[int, int]:
    """Returns the bytes of the installed files and of their bytecode, without pip."""
    (packages,) = interpreter.parents[1].glob("lib/python3.*/site-packages")
    files, bytecode = 0, 0
    for file in packages.rglob("*"):
        name = file.relative_to(packages).parts[0].split("-")[0]
        if not file.is_file() or name in INSTALLERS:
            continue
        size = file.stat().st_size
        files, bytecode = (
            (files, bytecode + size) if file.suffix == ".pyc" else (files + size, bytecode)
        )
    return files, bytecode


def check_core(package: Path, folder: Path) -> Iterator[str]:
    """Installs the core with each Python; yields a line for each."""
    for python in PYTHONS:
        if shutil.which(python) is None:
            yield f"{python}: not on this machine"
            continue
        interpreter = make_environment(python, folder / f"{package.suffix}-{python}", str(package))
        files, bytecode = count_bytes(interpreter)
        if files > CORE_BYTES:
            raise SystemExit(f"expected at most {CORE_BYTES:,} bytes, got {files:,}")
        run(interpreter, "-c", WITHOUT, cwd=folder)
        for command in CORE:
            try_out(interpreter, command, folder)
        yield f"{python}, {package.name}: {files:,} bytes, and {bytecode:,} of bytecode"


def check_extras(extras: str, wheel: Path, folder: Path) -> str:
    """Installs extras with the oldest Python and tries their commands; returns a line."""
    place = folder / extras
    interpreter = make_environment(PYTHONS[0], place, f"{wheel}[{extras}]")
    run(interpreter, "-m", "pip", "check", cwd=place)
    (place / "README.md").write_bytes((ROOT / "README.md").read_bytes())
    run(interpreter, "-c", IMPORTS.get(extras, ""), cwd=place)
    for command in EXTRAS[extras]:
        try_out(interpreter, command, place)
    files, bytecode = count_bytes(interpreter)
    shutil.rmtree(place)
    return f"{PYTHONS[0]}, {extras}: {files:,} bytes, and {bytecode:,} of bytecode"


def main(arguments: Sequence[str]) -> None:
    """Builds the packages and checks the chosen environments."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    choices = ("core", *EXTRAS)
    parser.add_argument(
        "environments", nargs="*", metavar="ENVIRONMENT", help=f"some of {' '.join(choices)}"
    )
    wanted = parser.parse_args(arguments).environments or choices
    if unknown := [one for one in wanted if one not in choices]:
        parser.error(f"expected some of {' '.join(choices)}, got {' '.join(unknown)}")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        wheel, source = build(folder)
        print(f"{wheel.name}: {wheel.stat().st_size:,} bytes")
        print(f"{source.name}: {source.stat().st_size:,} bytes")
        for package in (wheel, source) if "core" in wanted else ():
            for line in check_core(package, folder):
                print(line, flush=True)
        for extras in wanted:
            if extras != "core":
                print(check_extras(extras, wheel, folder), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
