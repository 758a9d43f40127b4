"""The tables behind the pictures of a plan's page."""

from collections.abc import Sequence

from qkvary.planning.pictures import (
    REAL_RANGE,
    CachePicture,
    QualityPicture,
    UsersPicture,
)
from qkvary.reports.plan_charts import write_share
from qkvary.reports.plan_variants import change_cell, standing_cell
from qkvary.reports.tables import Column, Table, named, plain
from qkvary.text import names, numbers, units

MOST_COLUMNS = 7
"""Places of an axis that a table shows."""


def cache_table(picture: CachePicture, key: str, *, decimal: bool) -> Table:
    """Return the cache of one user at some contexts, the one that was asked for among them."""
    places = _thin(picture.low, picture.high, (picture.context, picture.max_tokens))
    notes = [
        (
            f"Stored in {picture.form.name}; the most that is kept on the way to that many tokens. "
            "Both axes of the picture are logarithmic; a window bends a line where it is full."
        )
    ]
    if picture.left_out:
        notes.append(f"Without a cache: {names.listed(picture.left_out)}.")
    return Table(
        key=key,
        title="Cache of one user",
        columns=(
            Column(key="variant", title="variant", numeric=False),
            *(
                Column(key=f"bytes_at_{tokens}", title=units.tokens(tokens), below="tokens")
                for tokens in places
            ),
        ),
        rows=tuple(
            (
                named(name),
                *(
                    plain(held[place], units.data_size(held[place], decimal=decimal))
                    for place in places
                ),
            )
            for curve in picture.curves
            for held in (dict(curve.points),)
            for name in curve.names
        ),
        notes=tuple(notes),
    )


def users_table(picture: UsersPicture, key: str, *, decimal: bool) -> Table:
    """Return the users of one device at some amounts of memory, the plan's device among them."""
    places = _thin(picture.low, picture.high, (picture.memory_bytes,))
    notes = [
        (
            f"One copy of the model on one device, {numbers.share(picture.reserve)} of its "
            f"memory left alone, the cache in {picture.form.name}. The plan's table spreads a copy "
            "over several devices where that takes fewer in all."
        )
    ]
    if picture.left_out:
        notes.append(f"Not in the picture: {names.listed(picture.left_out)}.")
    return Table(
        key=key,
        title=f"Users of {picture.context:,} tokens on one device",
        columns=(
            Column(key="variant", title="variant", numeric=False),
            *(
                Column(
                    key=f"users_at_{place:.0f}",
                    title=units.data_size(place, decimal=decimal),
                    below="this device" if place == picture.memory_bytes else "memory",
                )
                for place in places
            ),
        ),
        rows=tuple(
            (
                named(name),
                *(plain(own, numbers.whole(own) if own else "none") for own in users),
            )
            for curve, users in zip(
                picture.curves, zip(*map(picture.users_at, places), strict=True), strict=True
            )
            for name in curve.names
        ),
        notes=tuple(notes),
    )


def quality_table(picture: QualityPicture, key: str) -> Table:
    """Return the published points with their intervals and the estimate per real token."""
    most, fewest = (numbers.percent(share, 0) for share in REAL_RANGE)
    return Table(
        key=key,
        title=f"{picture.size} networks: change of perplexity against cache",
        columns=(
            Column(key="variant", title="variant", numeric=False),
            Column(key="cache_share", title="cache", below="of QKV's"),
            Column(key="perplexity", title="perplexity", below="as printed"),
            Column(key="change_percent", title="change", below="% as published"),
            Column(key="estimate_percent", title="change", below="% per real token, estimate"),
            Column(key="standing", title="standing", numeric=False),
        ),
        rows=tuple(
            (
                named(point.variant),
                plain(point.share, write_share(point.share)),
                plain(point.perplexity),
                change_cell(point.change_percent, point.low, point.high),
                plain(
                    point.real_low,
                    numbers.MISSING
                    if point.real_low == point.real_high
                    else f"{numbers.fixed(point.real_low, 1, sign=True)} to "
                    f"{numbers.fixed(point.real_high, 1, sign=True)}",
                ),
                standing_cell(point.status, point.dominated_by),
            )
            for point in picture.points
        ),
        notes=(
            (
                f"The estimate assumes that {fewest} to {most} of the positions are real tokens "
                "and that padding costs nothing."
            ),
        ),
    )


def _thin(low: float, high: float, wanted: Sequence[int | None]) -> list[float]:
    """Powers of two along an axis, few enough for a table, and what was asked for."""
    first, last = round(low).bit_length() - 1, round(high).bit_length() - 1
    kept = sorted({value for value in wanted if value is not None and low <= value <= high})
    room = max(2, MOST_COLUMNS - len(kept))
    every = max(1, -(-(last - first) // (room - 1)))
    regular = {2**power for power in range(last, first - 1, -every)}
    return sorted({float(value) for value in (*kept, *regular)})
