"""A small SVG writer: escaped elements, plus scales and ticks for axes.

Everything that reaches an element is escaped here and nowhere else.
"""

import base64
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

from qkvary.text.names import clean
from qkvary.text.numbers import trim

EDGE = 8.0
"""Number of pixels by which the label of the last value may exceed the end of an axis."""
_TICK_LETTER = 6.4
"""Average width of a character of a value next to an axis, in pixels."""
Attribute = str | float | int | None
Point = tuple[float, float]


def number(value: float) -> str:
    """Write a coordinate: at most two decimals, no trailing zeros, never ``-0``."""
    written = trim(f"{value:.2f}")
    return "0" if written == "-0" else written


def element(tag: str, *children: str | Markup, **attributes: Attribute) -> Markup:
    """Write one element with escaped text.

    Children of type ``Markup`` are not escaped. An attribute ``class_`` is written as ``class``,
    and ``a_b`` as ``a-b``. Attributes that are None are left out.
    """
    written = "".join(
        f' {name.rstrip("_").replace("_", "-")}="'
        f'{escape(clean(value) if isinstance(value, str) else number(value))}"'
        for name, value in attributes.items()
        if value is not None
    )
    inner = Markup("").join(
        child if isinstance(child, Markup) else escape(clean(child)) for child in children
    )
    # Tags and attribute names are from this package; every value was escaped above.
    start = Markup("<{0}{1}").format(Markup(tag), Markup(written))  # noqa: S704
    return Markup("{0}>{1}</{2}>").format(start, inner, tag) if children else start + Markup("/>")


def group(children: Iterable[Markup], **attributes: Attribute) -> Markup:
    """Write a ``g`` element."""
    return element("g", Markup("").join(children), **attributes)


def text(
    x: float, y: float, content: str, class_: str | None = None, **attributes: Attribute
) -> Markup:
    """Write a piece of text; its style comes from the class."""
    return element("text", content, x=x, y=y, class_=class_, **attributes)


def line(start: Point, end: Point, class_: str) -> Markup:
    """Write a straight line."""
    return element("line", x1=start[0], y1=start[1], x2=end[0], y2=end[1], class_=class_)


def whisker(x: float, low: float, high: float, half: float, class_: str) -> list[Markup]:
    """Write an upright line with a cap at both ends."""
    ends = [line((x - half, y), (x + half, y), class_) for y in (low, high)]
    return [line((x, low), (x, high), class_), *ends]


def image(png: bytes, at: Point, size: Point, class_: str, *, is_stretched: bool = False) -> Markup:
    """Write an image element that contains the PNG itself."""
    return element(
        "image",
        href=f"data:image/png;base64,{base64.b64encode(png).decode('ascii')}",
        x=at[0],
        y=at[1],
        width=size[0],
        height=size[1],
        preserveAspectRatio="none" if is_stretched else None,
        class_=class_,
    )


def path(points: Sequence[Point], class_: str, closed: bool = False, dash: str = "") -> Markup:
    """Write a polyline."""
    data = path_data(points) + ("z" if closed else "")
    return element("path", d=data, class_=class_, stroke_dasharray=dash or None)


def path_data(points: Sequence[Point]) -> str:
    """Write the ``d`` of a polyline."""
    places = (f"{number(round(x, 1))} {number(round(y, 1))}" for x, y in points)
    return "M" + "L".join(places) if points else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawing:
    """A drawing with a description in words."""

    width: float
    height: float
    title: str
    description: str
    parts: tuple[Markup, ...]

    def to_svg(self, name: str) -> Markup:
        """Write the ``svg`` element, with ids that begin with ``name`` and are unique on a page."""
        return element(
            "svg",
            element("title", self.title, id=f"{name}-t"),
            element("desc", self.description, id=f"{name}-d"),
            *self.parts,
            viewBox=f"0 0 {number(self.width)} {number(self.height)}",
            role="img",
            aria_labelledby=f"{name}-t {name}-d",
            class_="drawing",
            style=f"--w:{number(self.width)}px",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """A map from values to positions along one axis: ``low`` is at ``start``, ``high`` at ``end``.

    On a vertical axis, ``end`` is above ``start``.
    """

    low: float
    high: float
    start: float
    end: float
    logarithmic: bool = False
    """Whether the axis is logarithmic."""
    binary: bool = False
    """Whether the ticks of a logarithmic axis are powers of two, as for bytes."""

    def __call__(self, value: float) -> float:
        """Return the position of a value, kept within the axis."""
        low, high, at = self.low, self.high, value
        if self.logarithmic:
            low, high, at = (math.log10(max(one, 1e-300)) for one in (low, high, at))
        share = (at - low) / (high - low) if high > low else 0.5
        return self.start + min(max(share, 0.0), 1.0) * (self.end - self.start)

    def ticks(self, count: int = 5) -> list[float]:
        """Return round values on this axis: about ``count``, or fewer."""
        if self.binary:
            return binary_ticks(self.low, self.high, count)
        return (log_ticks if self.logarithmic else linear_ticks)(self.low, self.high, count)


@dataclass(frozen=True, slots=True)
class Plot:
    """Both axes of a chart."""

    across: Scale
    up: Scale

    def point(self, x: float, y: float) -> Point:
        """Return the position, in pixels, of the point with the values ``x`` and ``y``."""
        return self.across(x), self.up(y)

    @property
    def area(self) -> tuple[float, float, float, float]:
        """Left, top, right and bottom of the chart, in pixels."""
        return self.across.start, self.up.end, self.across.end, self.up.start

    def cover(self, class_: str, bottom: float | None = None) -> Markup:
        """Write a rectangle over the chart, or over the part of it above ``bottom``."""
        left, top, right, end = self.area
        height = (end if bottom is None else bottom) - top
        return element("rect", x=left, y=top, width=right - left, height=height, class_=class_)


def linear_ticks(low: float, high: float, count: int) -> list[float]:
    """Return multiples of 1, 2 or 5 times a power of ten between two values."""
    if not high > low:
        return [low]
    rough = (high - low) / max(count, 1)
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough * 0.999)
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [round(index * step, 12) for index in range(first, last + 1)]


def log_ticks(low: float, high: float, count: int) -> list[float]:
    """Return powers of ten, with values between them if they fit.

    If fewer than two values are in the range, return linear ticks.
    """
    exponents = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for factors in ((1, 2, 5), (1, 3), (1,)):
        values = [factor * 10.0**power for power in exponents for factor in factors]
        inside = [value for value in values if low * 0.999 <= value <= high * 1.001]
        if len(inside) <= count + 1:
            return inside if len(inside) >= 2 else linear_ticks(low, high, count)
    every = max(1, math.ceil(len(exponents) / count))
    return [10.0**power for power in exponents if power % every == 0]


def binary_ticks(low: float, high: float, count: int) -> list[float]:
    """Return powers of two for a logarithmic axis.

    If fewer than two are in the range, return the multiples of one power of two.
    """
    first, last = math.ceil(math.log2(low) - 1e-9), math.floor(math.log2(high) + 1e-9)
    if first >= last:
        step = 2.0 ** math.ceil(math.log2((high - low) / count))
        return [step * place for place in range(math.ceil(low / step), math.floor(high / step) + 1)]
    every = max(1, math.ceil((last - first + 1) / (count + 1)))
    return [2.0**power for power in range(first, last + 1, every)]


def padded(values: Iterable[float], share: float = 0.06, logarithmic: bool = False) -> Point:
    """Return the range of the finite values, with a margin at both ends."""
    usable = [value for value in values if math.isfinite(value) and (value > 0 or not logarithmic)]
    if not usable:
        return (1.0, 10.0) if logarithmic else (0.0, 1.0)
    low, high = min(usable), max(usable)
    if logarithmic:
        margin = max((high / low) ** share, 1.08)
        return low / margin, high * margin
    margin = (high - low) * share or abs(high) * 0.05 or 0.5
    return low - margin, high + margin


def staircase(places: Sequence[Point], right: float) -> list[Point]:
    """Return the corners of the line through the frontier, starting at its cheapest point."""
    corners: list[Point] = []
    for x, y in places:
        if corners:
            corners.append((x, corners[-1][1]))
        corners.append((x, y))
    return [*corners, (right, corners[-1][1])] if corners else []


def y_axis(
    scale: Scale, left: float, right: float, write: Callable[[float], str], count: int = 5
) -> Markup:
    """Write horizontal grid lines with their values at the left."""
    marks: list[Markup] = []
    for value in scale.ticks(count):
        y = scale(value)
        marks.append(line((left, y), (right, y), "grid"))
        marks.append(text(left - 6, y + 3.5, write(value), "tick end"))
    return group(marks)


def x_axis(
    scale: Scale,
    bottom: float,
    write: Callable[[float], str],
    count: int = 5,
    top: float | None = None,
) -> Markup:
    """Draw the horizontal axis at ``bottom`` with its tick values beneath.

    If ``top`` is given, also draw vertical grid lines up to ``top``. A tick value that would extend
    more than ``EDGE`` beyond the end of the axis is moved to the left.
    """
    marks = [line((scale.start, bottom), (scale.end, bottom), "axis")]
    for value in scale.ticks(count):
        x = scale(value)
        end, style = (bottom + 4, "axis") if top is None else (top, "grid")
        marks.append(line((x, bottom), (x, end), style))
        label, most = write(value), scale.end + EDGE
        if x + len(label) * _TICK_LETTER / 2 > most:
            marks.append(text(most, bottom + 16, label, "tick end"))
        else:
            marks.append(text(x, bottom + 16, label, "tick middle"))
    return group(marks)
