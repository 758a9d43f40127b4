"""Renders a report as a self-contained HTML page, or as a fragment for a notebook.

Equal reports give equal text. The templates escape every text; ``svg`` escapes the texts of its
drawings. Reports are built elsewhere.
"""

import functools
import hashlib
import itertools
import re
from functools import partial
from importlib import resources
from typing import Any

from jinja2 import FunctionLoader, StrictUndefined
from jinja2.sandbox import SandboxedEnvironment
from markupsafe import Markup

from qkvary.reports.json_data import to_json
from qkvary.reports.report import Block, Report
from qkvary.reports.svg import Drawing
from qkvary.reports.variant_styles import style_rules
from qkvary.text import names


def render_page(report: Report, *, refresh_seconds: int = 0) -> str:
    """Return a report as HTML; if ``refresh_seconds`` is not 0, the page reloads itself."""
    return _render("page.html.j2", report, _style(), prefix="d", refresh_seconds=refresh_seconds)


def render_fragment(report: Report) -> str:
    """Return the brief part of a report as HTML for a notebook, with the rest collapsed.

    The style of the fragment applies to nothing else in the notebook, and takes precedence over the
    style of the notebook.
    """
    # A notebook holds several reports, so the ids in their drawings must differ.
    digest = hashlib.sha256(to_json(report.data).encode()).hexdigest()[:8]
    style = _style().replace(":root", "&") + _template_file("fragment.css")
    return _render("fragment.html.j2", report, style, prefix=f"d{digest}-")


def _style() -> str:
    return _template_file("page.css") + _template_file("charts.css") + style_rules()


def _render(template: str, report: Report, style: str, *, prefix: str, **more: object) -> str:
    numbers = itertools.count(1)

    def draw(drawing: Drawing) -> Markup:
        return drawing.to_svg(f"{prefix}{next(numbers)}")

    made = _environment().get_template(template)
    text = made.render(report=report, style=style, draw=draw, **more)
    return text.lstrip().encode("utf-8", "replace").decode("utf-8")


def _template_file(name: str) -> str:
    return resources.files("qkvary.reports").joinpath("template", name).read_text("utf-8")


@functools.cache
def _environment() -> SandboxedEnvironment:
    environment = SandboxedEnvironment(
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        loader=FunctionLoader(_template_file),
        finalize=_clean,
    )
    filters: dict[str, Any] = {
        "clip": names.clip,
        "kind": _kind,
        # No break after the minus of a label such as Q-K=V.
        "unbroken": partial(re.sub, r"(?<=[A-Z\])])-(?=[A-Z(\d])", "-\N{WORD JOINER}"),
    }
    environment.filters.update(filters)
    return environment


def _clean(value: object) -> object:
    """Replace control characters in text. Markup is returned as it is, because it has none."""
    if isinstance(value, str) and not isinstance(value, Markup):
        return names.clean(value)
    return value


def _kind(block: Block) -> str:
    return type(block).__name__
