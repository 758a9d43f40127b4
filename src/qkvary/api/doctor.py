"""Show what this machine offers: versions, devices, compiler, kernels, the folder of runs."""

import os
import shutil
import sys
from pathlib import Path
from typing import Any

from qkvary.api.arguments import verb
from qkvary.api.results import Result
from qkvary.data.checkpoint_names import RUNS
from qkvary.reports.machine import machine_report
from qkvary.storage.durable import refuse_files
from qkvary.storage.environment import machine, package_version, usable_cores
from qkvary.storage.file_systems import find_file_system, locks_exclude

PACKAGES = ("numpy", "scipy", "safetensors", "jinja2", "vl-convert-python", "cyclopts", "rich")
KERNEL_LENGTHS = (16, 64, 65, 256, 1024)


@verb
def doctor(*, out: Path = RUNS) -> Result[dict[str, Any]]:
    """Show what this machine offers: versions, devices, compiler, kernels, the folder of runs.

    Args:
        out: Folder of runs and reports.

    Raises:
        ValueError: if the folder is a file.
    """
    refuse_files(out)
    found: dict[str, Any] = {
        "environment": {
            **machine(),
            "usable_cores": usable_cores(),
            "memory_bytes": os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
            "compiler": next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None),
            "executable": sys.executable,
        },
        "packages": {name: package_version(name) for name in PACKAGES},
        "torch": _torch(),
        "folder": _folder(out),
    }
    return Result(found, machine_report(found))


def _torch() -> dict[str, Any] | None:
    """Return what torch reports about this machine, or None if torch is not installed.

    The report has the devices, the number of threads, the instruction set of the CPU and the
    attention kernels.
    """
    try:
        import torch

        from qkvary.arch.attention import AttentionConfig
        from qkvary.nn.kernels import name_kernel
    except ModuleNotFoundError:
        return None
    layer = AttentionConfig(d_model=64, num_heads=2)
    count = torch.cuda.device_count()
    accelerators = [f"cuda:{index} {torch.cuda.get_device_name(index)}" for index in range(count)]
    return {
        "devices": ["cpu", *accelerators, *(["mps"] if torch.backends.mps.is_available() else [])],
        "threads_by_default": torch.get_num_threads(),
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "kernels": {
            f"{length} keys": name_kernel(layer, length, training=True) for length in KERNEL_LENGTHS
        },
    }


def _folder(out: Path) -> dict[str, Any]:
    """Return space, write access and file locking of a folder or of its nearest existing parent."""
    path = out.absolute()
    existing = next(parent for parent in (path, *path.parents) if parent.is_dir())
    facts: dict[str, Any] = {
        "path": str(out),
        "exists": existing == path,
        "free_bytes": shutil.disk_usage(existing).free,
        "writable": os.access(existing, os.W_OK),
        "locks": os.access(existing, os.W_OK) and locks_exclude(existing),
    }
    file_system = find_file_system(existing)
    if file_system is not None:
        facts |= {
            "file_system": file_system.kind,
            "locks_reach": file_system.lock_reach,
            "lock_problem": file_system.lock_problem,
        }
    return facts
