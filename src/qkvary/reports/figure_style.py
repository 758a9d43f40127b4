"""How figures look and are saved: one matplotlib style for a paper, SVG, PNG and PDF, no dates.

Equal figures give equal bytes. Fonts are embedded, and no name is read as a formula.
"""

import io
import warnings
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import matplotlib as mpl
from matplotlib.figure import Figure

Format = Literal["svg", "png", "pdf"]

_STYLE: Any = {
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 7,
    "axes.titlesize": 8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.6,
    "axes.axisbelow": True,
    "grid.color": "#e4e8ec",
    "grid.linewidth": 0.5,
    "lines.linewidth": 1.1,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "pdf.fonttype": 42,
    "ps.fonttype": 42,
    "svg.fonttype": "path",
    "svg.hashsalt": "qkvary",
    "text.parse_math": False,
    "savefig.dpi": 300,
}
_METADATA: dict[Format, dict[str, str | None]] = {
    "svg": {"Date": None, "Creator": None},
    "png": {"Software": None},
    "pdf": {"CreationDate": None, "ModDate": None, "Creator": None, "Producer": None},
}


@contextmanager
def paper_style() -> Generator[None]:
    """Draw and save in the style of a paper."""
    with mpl.rc_context(_STYLE), warnings.catch_warnings():
        # A name may hold characters that no font has; a box in their place is the right answer.
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        yield


def save_figure(figure: Figure, name: str, formats: Sequence[Format]) -> dict[str, bytes]:
    """Return a figure in every format, by file name; call it within :func:`paper_style`."""
    files: dict[str, bytes] = {}
    for kind in formats:
        stream = io.BytesIO()
        figure.savefig(stream, format=kind, metadata=_METADATA[kind])
        files[f"{name}.{kind}"] = stream.getvalue()
    return files
