"""Loads the scripts of one-off experiments, which lie next to their records, not in a package."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

SHARED = ("measure", "train")
"""Names that scripts of several folders may have."""
STUDIES = Path(__file__).resolve().parents[2] / "studies"


def folder_of(folder: str) -> Path:
    """Returns the folder of the records of a study or experiment."""
    return next(STUDIES.glob(f"*/{folder}"), STUDIES / folder)


def load_script(folder: str, name: str) -> ModuleType:
    """Returns a file of a folder as a module, found as if its folder's script had been started."""
    path = folder_of(folder) / f"{name}.py"
    module_name = f"{folder.replace('-', '_')}_{name}" if name in SHARED else name
    if module_name in sys.modules:
        return sys.modules[module_name]
    spec = importlib.util.spec_from_file_location(module_name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module
    sys.path.insert(0, str(path.parent))
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[module_name]
        raise
    finally:
        sys.path.remove(str(path.parent))
    return module
