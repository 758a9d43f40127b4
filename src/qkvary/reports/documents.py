"""How any page is made: one sandboxed environment that escapes, one style, one script.

A page is one file that needs nothing else and says the same thing every time. Knows layout, not
what is reported.
"""

import base64
import hashlib
import re
from collections.abc import Mapping
from importlib import resources
from typing import Any

from jinja2 import FunctionLoader, StrictUndefined
from jinja2.sandbox import SandboxedEnvironment
from markupsafe import Markup

from qkvary.reports.families import FAMILIES
from qkvary.text import names, units


def render_document(template: str, view: Mapping[str, Any]) -> str:
    """Write a page.

    Args:
        template: The file in ``template/`` that lays it out.
        view: What it shows; text is escaped, markup stays.

    Returns:
        The HTML document; equal arguments give equal text.
    """
    script = _template_file("script.js")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode("ascii")
    text = (
        _environment()
        .get_template(template)
        .render(
            **view,
            style=Markup(_template_file("style.css") + _family_style()),  # noqa: S704 - our own
            script=Markup(script),  # noqa: S704
            script_hash=digest,
        )
    )
    return text.encode("utf-8", "replace").decode("utf-8")


def moment(stamp: str) -> str:
    """Write an ISO 8601 time for people."""
    return names.clip(stamp.replace("T", " ").replace("+00:00", " UTC"), 40)


def _template_file(name: str) -> str:
    return resources.files("qkvary.reports").joinpath("template", name).read_text("utf-8")


def _environment() -> SandboxedEnvironment:
    environment = SandboxedEnvironment(
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        loader=FunctionLoader(_template_file),
        finalize=_finalize,
    )
    filters: dict[str, Any] = {
        "clip": names.clip,
        "count": names.count,
        "duration": units.duration,
        "listed": names.listed,
        "moment": moment,
        "unbroken": _unbroken,
    }
    environment.filters.update(filters)
    return environment


def _finalize(value: object) -> object:
    """Clean every text on its way into the page; markup was cleaned when it was made."""
    if isinstance(value, str) and not isinstance(value, Markup):
        return names.clean(value)
    return value


def _unbroken(sentence: str) -> str:
    """Keep the labels in a sentence on one line: no break after the minus of ``Q-K=V``."""
    return re.sub(r"(?<=[A-Z\])])-(?=[A-Z(\d])", "-\N{WORD JOINER}", sentence)


def _family_style() -> str:
    light = "".join(f"--f-{family.key}:{family.light};" for family in FAMILIES)
    dark = "".join(f"--f-{family.key}:{family.dark};" for family in FAMILIES)
    rules = "".join(
        f".f-{family.key}{{--c:var(--f-{family.key})}}.t-{family.key}{{fill:var(--f-{family.key})}}"
        for family in FAMILIES
    )
    return f":root{{{light}}}@media (prefers-color-scheme:dark){{:root{{{dark}}}}}{rules}\n"
