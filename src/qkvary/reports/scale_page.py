"""A study of scales as a folder: a page with its tables and conclusions, CSV, and the records.

Every sentence follows from the figures, so that whoever runs the study again gets a page about
what was measured then.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from qkvary.reports.tables import (
    Cell,
    Column,
    Table,
    named,
    plain,
    table_csv,
    table_markdown,
)
from qkvary.storage.jsonvalues import encode
from qkvary.studies.results.statistics import Estimate
from qkvary.studies.scale_records import Ratio, ScaleStudy, StorageSummary
from qkvary.text import names

PICTURE = "figures/divergence.svg"
SCHEMA = 1
_SPELLING = (
    "Scales are of 32 bits: `g32` one for each token and head of 32 channels, `b32` one for each "
    "channel over 32 tokens, so that both take a bit a number beside its code. By channel, tokens "
    "wait as they are until their block is full: 0 to 31 of the newest. `-r16` keeps the newest 16 "
    "tokens as they are, by channel thus 16 to 47. `-rot` rotates the channels of a head first."
)


def scale_files(study: ScaleStudy) -> dict[str, bytes]:
    """The files of the folder but the picture, by name."""
    storages, ratios, networks = _storages(study), _ratios(study.ratios()), _networks(study)
    page = "\n".join([*_head(study), *_conclusions(study), *_caveats(study), ""])
    tables = "\n\n".join(table_markdown(table).rstrip() for table in (ratios, storages, networks))
    return {
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
    known = sorted(study.environment.items())
    environment = "; ".join(f"{name} {names.markdown(str(value))}" for name, value in known)
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
        f"{environment}.",
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
    """A ratio with its interval."""
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
