"""A study of scales as a folder: a README with tables and a picture, CSV, and the records.

Every sentence follows from the figures, so that whoever runs the study again gets a page about
what was measured then.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import partial

from scale_records import WAYS, Ratio, ScaleStudy, StorageSummary

from qkvary.papers.script_figures import describe_environment
from qkvary.reports import svg
from qkvary.reports.figures import sheet
from qkvary.reports.markdown import table_markdown
from qkvary.reports.report import Chart, Group
from qkvary.reports.tables import Cell, Column, Table, named, plain, table_csv
from qkvary.reports.variant_styles import FAMILIES, mark
from qkvary.storage.jsonvalues import encode
from qkvary.studies.results.statistics import Estimate

PICTURE = "figures/divergence.svg"
SCHEMA = 1
_SPELLING = (
    "Scales are of 32 bits: `g32` one for each token and head of 32 channels, `b32` one for each "
    "channel over 32 tokens, so that both take a bit a number beside its code. By channel, tokens "
    "wait as they are until their block is full: 0 to 31 of the newest. `-r16` keeps the newest 16 "
    "tokens as they are, by channel thus 16 to 47. `-rot` rotates the channels of a head first."
)
NAMES = {
    "g32": "by token",
    "g32-rot": "by token, rotated",
    "g32-r16": "by token, newest 16 as they are",
    "g32-r32": "by token, newest 32 as they are",
    "b32": "by channel",
    "b32-rot": "by channel, rotated",
    "b32-r16": "by channel, newest 16 to 47 as they are",
}
SHIFT = 0.06
"""Bits between the marks of two storages with as many bits, so that whiskers can be told apart."""


def scale_files(study: ScaleStudy) -> dict[str, bytes]:
    """Returns the files of the folder by name."""
    storages, ratios, networks = _storages(study), _ratios(study.ratios()), _networks(study)
    page = "\n".join([*_head(study), *_conclusions(study), *_caveats(study), ""])
    tables = "\n\n".join(table_markdown(table).rstrip() for table in (ratios, storages, networks))
    return {
        PICTURE: draw_scales(study),
        "README.md": f"{page}\n## Tables\n\n{tables}\n".encode(),
        "tables/storages.csv": table_csv(storages).encode(),
        "tables/ratios.csv": table_csv(ratios).encode(),
        "tables/networks.csv": table_csv(networks).encode(),
        "records.json": _records(study),
    }


def _head(study: ScaleStudy) -> list[str]:
    networks = len(study.variants) * len(study.seeds)
    seeds = ", ".join(map(str, study.seeds))
    how = (
        f"Each of the {networks} networks (seeds {seeds}) decoded {study.windows} windows of "
        f"{study.context} held-out characters token by token, once without rounding and once with "
        "each storage. KL is sum p log(p / p') in nats, p without rounding."
    )
    ran = (
        f"The command ran from {study.started} to {study.ended}; what was trained or measured "
        "before was not made again."
    )
    return [
        f"# {study.question}",
        "",
        study.description,
        "",
        how,
        "",
        _SPELLING,
        "",
        f"![divergence against bits]({PICTURE})",
        "",
        "## Run it again",
        "",
        f"    {study.command}",
        "",
        f"{describe_environment(study.environment)}.",
        ran,
        "",
    ]


def _conclusions(study: ScaleStudy) -> list[str]:
    """What the intervals support, in a sentence for each comparison and each kind of network."""
    lines = ["## What was found", ""]
    groups: dict[tuple[str, str], list[Ratio]] = {}
    for ratio in study.ratios():
        groups.setdefault((ratio.what, ratio.where), []).append(ratio)
    for what in dict.fromkeys(what for what, _ in groups):
        lines.append(f"- **{what[0].upper()}{what[1:]}**: {_in_short(groups, what)}")
        for (same, where), some in groups.items():
            if same == what:
                said = ", ".join(f"{one.bits} bits {times(one.log)} {one.verdict}" for one in some)
                lines.append(f"  - {where}: {said}")
    lines += ["", *(_promises(study)), ""]
    return lines


def _in_short(groups: Mapping[tuple[str, str], Sequence[Ratio]], what: str) -> str:
    """One comparison over all networks and bits."""
    some = [ratio for (same, _), ratios in groups.items() if same == what for ratio in ratios]
    times = sorted(math.exp(_mean(ratio.log)) for ratio in some)
    verdicts = [ratio.verdict for ratio in some]
    said = [
        f"{word} in {verdicts.count(word)}"
        for word in ("lower", "higher", "not distinguished", "no interval")
        if word in verdicts
    ]
    return (
        f"mean KL times {times[0]:.2g} to {times[-1]:.2g}; of {len(some)} cases {', '.join(said)}."
    )


def _promises(study: ScaleStudy) -> Iterable[str]:
    """What codes of 8 bits promise, and where fewer cost least."""
    summaries = [one for one in study.summaries() if one.layout == "sources"]
    eight = [one for one in summaries if one.bits == 8]
    missed = [one for one in eight if one.meeting < one.seeds]
    if missed:
        listed = "; ".join(
            f"{one.variant} {one.scales} by {one.seeds - one.meeting} of {one.seeds}"
            for one in missed
        )
        yield "- The promise of 8 bits (median KL 1e-3, 99 % 1e-2, perplexity 0.2 %, top token"
        yield f"  99 %) was missed by: {listed}; it was kept by all others."
    else:
        yield f"- All {sum(one.seeds for one in eight)} measurements of 8 bits kept their promise"
        yield "  (median KL 1e-3, 99 % 1e-2, perplexity 0.2 %, top token 99 %)."
    for bits in sorted({one.bits for one in summaries} - {8}, reverse=True):
        for variant in study.variants:
            some = [one for one in summaries if (one.bits, one.variant) == (bits, variant)]
            best = min(some, key=lambda one: _mean(one.mean_kl))
            yield (
                f"- {bits} bits, {variant}: the smallest mean KL has `{best.scales}`, "
                f"{math.exp(_mean(best.mean_kl)):.1e}, at {_percent(best.perplexity_change)} of "
                "perplexity."
            )
    drifting = {
        way: (sum(one.drifting for one in some), sum(one.seeds for one in some))
        for way in dict.fromkeys(one.scales for one in summaries)
        for some in ([one for one in summaries if one.scales == way],)
    }
    listed = ", ".join(f"`{way}` {rising} of {count}" for way, (rising, count) in drifting.items())
    yield (
        "- The divergence rose with the position in the later half of the window, by more than two "
        f"standard errors (noise does in one of 44): {listed}. Where newest tokens are kept as "
        "they are, a growing part of what is seen is rounded."
    )


def _caveats(study: ScaleStudy) -> list[str]:
    ratios = study.ratios()
    confidence = 100 * ratios[0].log.confidence if ratios else 95.0
    waiting = (
        f"Tokens that are kept as they are are a good part of a window of {study.context}, and "
        "little of a long one. Bits in the table and the picture are those in the long run, "
        "without them."
    )
    intervals = (
        "Ratios are paired by seed. Their intervals are Student's of the logarithm, with "
        f"Bonferroni's correction for {len(ratios)} comparisons: each has {confidence:.2f} %, all "
        "hold at once with 95 %. Those of storages are 95 % each."
    )
    small = (
        "These are small networks, trained for a minute each on one text. What another checkpoint "
        "loses is measured by `qkvary bench quantized`."
    )
    said = (small, waiting, intervals, "Codes of 3 bits are an experiment.")
    return ["## Before you believe it", "", *(f"- {sentence}" for sentence in said), ""]


def _storages(study: ScaleStudy) -> Table:
    columns = (
        Column(key="variant", title="network", numeric=False),
        Column(key="layout", title="layout", numeric=False),
        Column(key="storage", title="storage", numeric=False),
        Column(key="bits_per_number", title="bits", below="in the long run"),
        Column(key="mean_kl", title="mean KL", below="geometric mean, 95 %"),
        Column(key="median_kl", title="median KL", below="geometric mean"),
        Column(key="perplexity_change", title="perplexity", below="95 %"),
        Column(key="top1", title="top token"),
        Column(key="drifting_networks", title="drifting"),
    )
    return Table(
        key="storages",
        title="What each storage costs",
        columns=columns,
        rows=tuple(_storage_row(one) for one in study.summaries()),
    )


def _storage_row(one: StorageSummary) -> tuple[Cell, ...]:
    # Scales of 32 bits for 32 numbers.
    bits = one.bits + 1
    return (
        named(one.variant),
        plain(one.layout),
        plain(f"int{one.bits}-{one.scales}"),
        plain(bits, f"{bits}"),
        plain(math.exp(_mean(one.mean_kl)), _spread(one.mean_kl)),
        plain(math.exp(_mean(one.median_kl)), f"{math.exp(_mean(one.median_kl)):.1e}"),
        plain(_mean(one.perplexity_change), _percent(one.perplexity_change)),
        plain(one.top1, f"{100 * one.top1:.1f} %"),
        plain(one.drifting, f"{one.drifting}/{one.seeds}"),
    )


def _ratios(ratios: Sequence[Ratio]) -> Table:
    columns = (
        Column(key="comparison", title="comparison", numeric=False),
        Column(key="variant", title="network", numeric=False),
        Column(key="bits", title="bits"),
        Column(key="ratio", title="mean KL times", below="corrected interval"),
        Column(key="verdict", title="supported", numeric=False),
    )
    rows = tuple(
        (
            plain(one.what),
            named(one.where),
            plain(one.bits, str(one.bits)),
            plain(math.exp(_mean(one.log)), times(one.log)),
            plain(one.verdict),
        )
        for one in ratios
    )
    return Table(key="ratios", title="Planned comparisons", columns=columns, rows=rows)


def _networks(study: ScaleStudy) -> Table:
    columns = (
        Column(key="variant", title="network", numeric=False),
        *(Column(key=f"seed_{seed}", title=f"seed {seed}") for seed in study.seeds),
    )
    rows = tuple(
        (named(variant), *(plain(loss, f"{loss:.3f}") for loss in losses))
        for variant, losses in study.losses.items()
    )
    return Table(
        key="networks", title="Test loss without rounding, nats", columns=columns, rows=rows
    )


def _records(study: ScaleStudy) -> bytes:
    rows = [
        {
            "variant": one.variant,
            "seed": one.seed,
            "layout": one.layout,
            "storage": one.storage,
            **one.figures,
        }
        for one in study.records
    ]
    head = {
        "schema_version": SCHEMA,
        "study": study.name,
        "command": study.command,
        "environment": dict(study.environment),
        "started": study.started,
        "ended": study.ended,
        "losses": {name: list(losses) for name, losses in study.losses.items()},
    }
    lines = ",\n".join(f"  {encode(row)}" for row in rows)
    return f'{encode(head)[:-1]}, "records": [\n{lines}\n]}}\n'.encode()


def _mean(estimate: Estimate) -> float:
    return math.nan if estimate.mean is None else estimate.mean


def times(log: Estimate) -> str:
    """Returns a ratio with its interval."""
    middle = f"{math.exp(_mean(log)):.2g}"
    if log.low is None or log.high is None:
        return middle
    return f"{middle} [{_bounded(log.low)}, {_bounded(log.high)}]"


def _bounded(log: float) -> str:
    return f"{math.exp(min(log, 700.0)):.2g}"


def _spread(log: Estimate) -> str:
    middle = f"{math.exp(_mean(log)):.1e}"
    if log.low is None or log.high is None:
        return middle
    low, high = (math.exp(min(bound, 700.0)) for bound in (log.low, log.high))
    return f"{middle} [{low:.1e}, {high:.1e}]"


def _percent(share: Estimate) -> str:
    middle = f"{100 * _mean(share):+.2f} %"
    if share.low is None or share.high is None:
        return middle
    return f"{middle} [{100 * share.low:+.2f}, {100 * share.high:+.2f}]"


def draw_scales(study: ScaleStudy) -> bytes:
    """Draws divergence against bits, one panel for each kind of network."""
    summaries = [one for one in study.summaries() if one.layout == "sources"]
    charts = tuple(
        Chart(
            draw=partial(_panel, [one for one in summaries if one.variant == variant], summaries),
            caption=variant,
        )
        for variant in study.variants
    )
    return sheet(Group(blocks=(*charts, Chart(draw=_key, caption="scales")))).encode()


def _panel(shown: Sequence[StorageSummary], all_: Sequence[StorageSummary]) -> svg.Drawing:
    ends = [math.exp(end) for one in all_ for end in _bounds(one)]
    low, high = svg.padded(ends, 0.05, logarithmic=True)
    up = svg.Scale(low=low, high=high, start=196, end=24, logarithmic=True)
    bits = sorted({one.bits + 1 for one in all_})
    across = svg.Scale(low=bits[0] - 0.5, high=bits[-1] + 0.5, start=52, end=320)
    parts = [
        svg.y_axis(up, 52, 320, lambda value: f"{value:.0e}"),
        svg.line((52, 196), (320, 196), "axis"),
        *(svg.text(across(bit), 212, str(bit), "tick middle") for bit in bits),
        svg.text(8, 12, "mean KL, nats", "axis-title"),
        svg.text(320, 228, "bits of a number, scales included", "axis-title end"),
    ]
    for number, way in enumerate(WAYS):
        family, points = FAMILIES[number], []
        for one in (one for one in shown if one.scales == way and one.mean_kl.mean is not None):
            x = across(one.bits + 1 + SHIFT * (number - 3))
            low, middle, high = (up(math.exp(end)) for end in _bounds(one))
            parts.append(svg.line((x, low), (x, high), f"whisker f-{family.key}"))
            parts.append(mark(family, x, middle, 3))
            points.append((x, middle))
        parts.append(
            svg.element(
                "path",
                d=svg.path_data(points),
                class_=f"curve f-{family.key}",
                stroke_dasharray=family.dash or None,
            )
        )
    words = f"Mean divergence of {len(shown)} storages against the bits of a number."
    return svg.Drawing(
        width=330, height=234, title="Divergence", description=words, parts=tuple(parts)
    )


def _key() -> svg.Drawing:
    parts = [
        part
        for number, way in enumerate(WAYS)
        for part in (
            mark(FAMILIES[number], 12, 30 + 20 * number, 4),
            svg.text(26, 34 + 20 * number, NAMES[way], "tick strong"),
        )
    ]
    return svg.Drawing(
        width=330, height=234, title="Key", description="Marks of scales.", parts=tuple(parts)
    )


def _bounds(one: StorageSummary) -> tuple[float, float, float]:
    """The low end, the mean and the high end of a logarithm."""
    log = one.mean_kl
    return _or(log.low, log.mean), _mean(log), _or(log.high, log.mean)


def _or(bound: float | None, middle: float | None) -> float:
    return (0.0 if middle is None else middle) if bound is None else bound
