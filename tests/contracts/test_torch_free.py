"""Configurations, costs, study definitions and most commands work without importing torch.

import-linter checks the modules that never import it; these tests check those with late imports.
"""

from pathlib import Path

from tests.conftest import Runner
from tests.contracts.parsed import PACKAGE

FOLDERS = (
    *("arch", "costs", "planning", "storage", "text"),
    *("papers/key_value", "papers/ours", "papers/three_projections"),
)
MODULES = (
    *("qkvary", "qkvary.cli.main", "qkvary.api.cost", "qkvary.api.plan", "qkvary.api.variants"),
    "qkvary.checkpoints.catalog",
    *("qkvary.data.tokenizers", "qkvary.inference.streaming", "qkvary.training.presets"),
    *("qkvary.inference.evaluation.local_tasks", "qkvary.inference.evaluation.task_scores"),
    *("qkvary.papers.recomputation", "qkvary.papers.tables"),
    *("qkvary.studies.catalog", "qkvary.studies.results.analysis"),
)
"""Modules that import torch late, and those of the first commands that a person types."""

SCRIPT = """
import importlib, sys
opened = []
sys.addaudithook(lambda event, args: opened.append(event) if event in {EVENTS!r} else None)
for name in sys.argv[1:]:
    importlib.import_module(name)
heavy = sorted({{"torch", "vl_convert", "safetensors"}} & set(sys.modules))
print("heavy:", *heavy)
print("audit:", *sorted(set(opened)))
""".format(EVENTS=("socket.connect", "subprocess.Popen", "os.system", "os.remove", "os.mkdir"))


def module_name(path: Path) -> str:
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def torch_free_modules() -> list[str]:
    files = [path for folder in FOLDERS for path in sorted((PACKAGE / folder).rglob("*.py"))]
    names = {*map(module_name, files)} - {"qkvary.papers.key_value.cross_attention"}
    return [*MODULES, *sorted(names)]


def test_torch_free_modules_import_without_torch_and_touch_nothing(run_python: Runner) -> None:
    # Bytecode is what importing may write.
    result = run_python(["-B", "-c", SCRIPT, *torch_free_modules()])
    assert result.stderr == ""
    assert result.stdout.splitlines() == ["heavy:", "audit:"]


COMMANDS = [
    ["--help"],
    ["--version"],
    ["studies"],
    ["status", "--out", "no runs here"],
    ["variants", "--json"],
    ["published"],
    ["claims", "--search", "cache"],
    ["cost", "gpt2"],
    ["plan", "gemma-4-31b", "--gpu", "h100-80gb"],
    ["generate", "--help"],
    ["evaluate", "--help"],
    ["export", "--help"],
    ["bench", "--help"],
    ["bench", "decode", "--help"],
    ["plan", "300M", "--gpu", "a100-40gb", "--context", "32k", "--users", "100"],
    ["plan", "gpt2", "--memory", "24GiB", "--goal", "training", "--json"],
]


def test_command_line_answers_without_torch(run_python: Runner) -> None:
    """In one process: the first command that imports something heavy is the one that is named."""
    code = (
        "import sys\nfrom qkvary.cli.main import main\n"
        f"for words in {COMMANDS!r}:\n"
        "    status = main(words)\n"
        "    heavy = {'torch', 'numpy', 'vl_convert', 'jinja2'}\n"
        "    heavy |= {'cyclopts', 'rich'} if words == ['--help'] else set()\n"
        "    heavy &= set(sys.modules)\n"
        "    if status or heavy: sys.exit(f'{words} ends with {status} and imports {heavy}')"
    )
    result = run_python(["-c", code])
    assert (result.returncode, result.stderr) == (0, "")


NAMES = [
    "qk.cost('lm-300m', 'Q-K=V')",
    "qk.plan('300M', gpu='t4')",
    "qk.variants('Q-K=V', model='lm-10m')",
    "(qk.Study, qk.Setting)",
]


def test_python_answers_without_torch(run_python: Runner) -> None:
    code = (
        "import sys\nimport qkvary as qk\nheavy = {'torch', 'numpy', 'vl_convert', 'pandas'}\n"
        "if len([name for name in sys.modules if name.startswith('qkvary')]) != 1:\n"
        "    sys.exit('import qkvary imports more')\n"
        f"for words in {NAMES!r}:\n"
        "    found = eval(words)\n"
        "    if hasattr(found, 'to_dict'): found.to_dict(), repr(found), found._repr_html_()\n"
        "    if heavy & set(sys.modules): sys.exit(f'{words} imports {heavy & set(sys.modules)}')"
    )
    result = run_python(["-c", code])
    assert (result.returncode, result.stderr) == (0, "")
