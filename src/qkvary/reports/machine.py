"""The report of a machine: what it offers, and what is wrong with it."""

from collections.abc import Iterator, Mapping
from typing import Any, cast

from qkvary.reports.report import Report, facts_section
from qkvary.storage.packages import describe_missing
from qkvary.text.numbers import data_size

ENOUGH_FREE_BYTES = 1 << 30
TESTED_TORCH = "2.13"


def machine_report(found: Mapping[str, Any]) -> Report:
    """Return the report of a machine.

    The keys of ``found`` are ``environment``, ``packages``, ``torch`` and ``folder``.
    """
    problems = list(_problems(found))
    return Report(
        subject="this machine",
        question="What does this machine offer?",
        answer=tuple(f"problem: {one}" for one in problems) or ("no problems found",),
        sections=tuple(facts_section(part, _rows(facts)) for part, facts in found.items()),
        data={**found, "problems": problems},
    )


def _problems(found: Mapping[str, Any]) -> Iterator[str]:
    torch, folder = found["environment"]["torch"], found["folder"]
    if torch is None:
        yield describe_missing("torch")
    elif not torch.startswith(TESTED_TORCH):
        yield (
            f"torch {torch} is not the tested version {TESTED_TORCH}: results may differ from "
            "those of the tested version in the last bits"
        )
    if not folder["writable"]:
        yield f"{folder['path']} is not writable: choose another folder with --out"
    elif not folder["locks"]:
        yield f"{folder['path']} has no file locks: two processes cannot share its runs"
    elif folder.get("lock_problem"):
        yield folder["lock_problem"]
    if folder["free_bytes"] < ENOUGH_FREE_BYTES:
        yield f"{folder['path']} has {data_size(folder['free_bytes'])} free, less than 1 GiB"


def _rows(facts: Mapping[str, Any] | None) -> Iterator[tuple[str, str]]:
    for name, value in (facts or {"torch": None}).items():
        if name == "lock_problem":
            # Listed together with the other problems.
            continue
        yield f"  {name.removesuffix('_bytes').replace('_', ' ')}", _format_value(name, value)


def _format_value(name: str, value: object) -> str:
    if value is None:
        return "missing"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if name.endswith("_bytes"):
        return data_size(cast("float", value))
    if isinstance(value, dict):
        pairs = cast("dict[str, object]", value)
        return ", ".join(f"{key}: {item}" for key, item in pairs.items())
    return ", ".join(cast("list[str]", value)) if isinstance(value, list) else str(value)
