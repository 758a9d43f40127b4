"""How alike keys and values are over a training, and what tying them costs: the page about it.

Figures are means over layers, then over seeds, with Student's intervals at 95 %.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import median
from typing import Any

from qkvary.papers.script_figures import describe_environment
from qkvary.reports import svg
from qkvary.reports.figures import sheet
from qkvary.reports.markdown import table_markdown
from qkvary.reports.report import Chart, Group
from qkvary.reports.tables import Cell, Column, Table, plain, table_csv
from qkvary.reports.variant_styles import FAMILIES, mark
from qkvary.storage.jsonvalues import encode
from qkvary.studies.results.statistics import Estimate, paired_t, rank_correlation
from qkvary.text import names, numbers

PICTURE = "figures/likeness.svg"
SCHEMA = 1
LEAST = 1e-6
"""The smallest rise that the picture shows, in nats."""
Figures = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Likeness:
    """Everything that was measured."""

    question: str
    description: str
    limits: tuple[str, ...]
    environment: Mapping[str, Any]
    read_tokens: int
    """Tokens that each network was analyzed on."""
    scored_tokens: int
    """Tokens of other books that losses are means over."""
    runs: tuple[Figures, ...]
    """For each run ``variant``, ``seed``, the layers at all ``steps``, and ``greedy`` tying."""

    @property
    def apart(self) -> list[Figures]:
        """The runs with a key and a value of their own."""
        return [run for run in self.runs if run["greedy"]]

    @property
    def steps(self) -> list[int]:
        """The steps at which networks were kept."""
        return sorted({one["step"] for one in self.runs[0]["steps"]})


def likeness_files(study: Likeness) -> dict[str, bytes]:
    """Return the files of the folder by name."""
    tables = (training_table(study), tying_table(study), greedy_table(study), symmetry_table(study))
    shown = "\n\n".join(table_markdown(table).rstrip() for table in tables)
    page = "\n".join([*_head(study), *_answers(study), "", "## Before you believe it", "", ""])
    limits = "\n".join(f"- {text}" for text in _limits(study))
    return {
        PICTURE: _draw(study).encode(),
        "README.md": f"{page}{limits}\n\n## Tables\n\n{shown}\n".encode(),
        **{f"tables/{table.key}.csv": table_csv(table).encode() for table in tables},
        "records.json": (
            encode({"schema_version": SCHEMA, "runs": list(study.runs)}) + "\n"
        ).encode(),
    }


def _head(study: Likeness) -> list[str]:
    seeds = ", ".join(str(run["seed"]) for run in study.apart)
    return [
        f"# {study.question}",
        "",
        study.description,
        "",
        (
            f"Seeds {seeds}. Each network was analyzed on {study.read_tokens:,} tokens of held-out "
            f"text and scored on {study.scored_tokens:,} tokens of other books. A layer is tied "
            "without any training: its key and its value become linear maps of one tensor of "
            "head_dim channels a head, the best one by the forecast, and the layer one of Q-K=V "
            "([how](tying.py)). Beside it the value becomes "
            "the best linear map of the key as it is. Means over layers, then over seeds, "
            "with Student's intervals at 95 %. "
            "[What the figures are](../../../docs/guide/analyze.md). "
            "`python studies/ours/likeness-over-training/measure.py` makes all of this again."
        ),
        "",
        f"![Likeness over training, and forecast against rise]({PICTURE})",
        "",
        describe_environment(study.environment),
        "",
        "## What was found",
        "",
    ]


# ---- figures


def over_layers(run: Figures, step: int, value: Callable[[Figures], float]) -> float:
    """Return the mean of a figure over the layers of a run at a step."""
    found = [value(one) for one in run["steps"] if one["step"] == step]
    return sum(found) / len(found)


def over_seeds(runs: Sequence[Figures], step: int, value: Callable[[Figures], float]) -> Estimate:
    """Return the mean over seeds of the mean over layers."""
    return paired_t([over_layers(run, step, value) for run in runs])


def excess(name: str, chance: str) -> Callable[[Figures], float]:
    """Return a figure above its value for random weights."""
    return lambda one: one[name] - one[chance]


EXCESSES: Mapping[str, tuple[str, str]] = {
    "explained": ("explained", "explained_chance"),
    "tokens": ("token_overlap", "token_chance"),
    "CKA": ("similarity", "similarity_chance"),
    "lost": ("lost", "lost_chance"),
}


def rise(one: Figures, name: str = "tied") -> float:
    """Return how much tying the layer alone raises the loss."""
    return one[f"{name}_loss"] - one["loss"]


def correlate(study: Likeness, steps: Sequence[int]) -> Estimate:
    """Return the mean over seeds of the rank correlation of forecast and rise."""
    found: list[float | None] = []
    for run in study.apart:
        points = [one for one in run["steps"] if one["step"] in steps]
        found.append(rank_correlation([one["forecast"] for one in points], list(map(rise, points))))
    estimate = paired_t([one for one in found if one is not None])
    low, high = (None if end is None else min(1.0, max(-1.0, end)) for end in _ends(estimate))
    return replace(estimate, low=low, high=high)


def _ends(estimate: Estimate) -> tuple[float | None, float | None]:
    return estimate.low, estimate.high


# ---- sentences


def _answers(study: Likeness) -> Iterator[str]:
    first, last = study.steps[0], study.steps[-1]
    runs = study.apart
    begun, ended = (
        over_seeds(runs, step, excess(*EXCESSES["explained"])) for step in (first, last)
    )
    chance = over_seeds(runs, last, lambda one: one["explained_chance"])
    yield (
        f"- **{_origin(begun, ended)}** The key explains {_points(begun)} points more of the "
        f"value's output than random weights do before the first step, and {_points(ended)} at the "
        f"end, where random weights explain {numbers.percent(chance.mean, 0)}."
    )
    overlaps = [over_seeds(runs, step, excess(*EXCESSES["tokens"])) for step in (first, last)]
    yield (
        "- Over the tokens, keys and values have mean squared canonical correlations that are "
        f"{_points(overlaps[0])} points above those of random weights before the first step, and "
        f"{_points(overlaps[1])} at the end."
    )
    turned = over_seeds(runs, last, cosine("key-value"))
    yield (
        "- The cosine of W_K and W_V, whatever its sign, is "
        f"{_interval(turned, 2)} deviations of random matrices at the end (0.80 would be chance)."
    )
    trained = study.steps[1:]
    whole, final = correlate(study, trained), correlate(study, [last])
    yield (
        f"- **Forecast and rise of the loss**: rank correlation {_interval(whole, 2)} over the "
        f"layers at {names.count(len(trained), 'step')} of a training, {_interval(final, 2)} over "
        f"the {_layers(study)} layers at its end."
    )
    ratios = paired_t([ratio(run, last) for run in runs])
    alone = paired_t([over_layers(run, last, partial(rise, name="key_alone")) for run in runs])
    best = paired_t([over_layers(run, last, rise) for run in runs])
    yield (
        f"- At the end the rise is {_interval(ratios, 2)} times the forecast (median of the "
        f"layers). One layer tied costs {_interval(best, 4)} nats, and {_interval(alone, 4)} where "
        "the value is made of the key as it is."
    )
    every = paired_t([run["greedy"][-1]["rise"] for run in runs])
    forecast = paired_t([run["greedy"][-1]["forecast"] for run in runs])
    gap = paired_t(
        [
            over_layers(shared, last, lambda one: one["loss"])
            - over_layers(run, last, lambda one: one["loss"])
            for run, shared in pairs(study)
        ]
    )
    yield (
        f"- All layers tied, one after the other: {_interval(every, 3)} nats, forecast "
        f"{_interval(forecast, 3)}. Trained with one tensor from the start, it is "
        f"{_interval(gap, 3)}."
    )


def _origin(begun: Estimate, ended: Estimate) -> str:
    if ended.low is None or begun.low is None:
        return "One seed says nothing about spread."
    if ended.low <= 0:
        return "At the end no difference to random weights shows in what the key explains."
    if begun.low > 0:
        return "The key explains more of the value than random weights would, from the start."
    return "Training lets the key explain more of the value than random weights would."


def pairs(study: Likeness) -> list[tuple[Figures, Figures]]:
    """Return each run with a key and a value of its own, and that of its seed with one tensor."""
    shared = {run["seed"]: run for run in study.runs if not run["greedy"]}
    return [(run, shared[run["seed"]]) for run in study.apart if run["seed"] in shared]


def ratio(run: Figures, step: int) -> float:
    """Return the median over the layers of the rise as a multiple of the forecast."""
    return median(rise(one) / one["forecast"] for one in run["steps"] if one["step"] == step)


def cosine(pair: str) -> Callable[[Figures], float]:
    """Return the size of a cosine of two weights in deviations of random ones."""
    return lambda one: abs(one[f"cosine_{pair}"]) / one[f"deviation_{pair}"]


def _layers(study: Likeness) -> int:
    return max(one["layer"] for one in study.runs[0]["steps"])


def _limits(study: Likeness) -> Iterator[str]:
    yield from study.limits
    yield (
        "The forecast is of second order, and takes the changes of different tokens for "
        "independent. It is made on other text than the rise is measured on."
    )
    yield (
        f"A correlation over {_layers(study)} layers of a network is coarse; over the steps it is "
        "also one of early and late networks."
    )
    yield "Every interval holds alone: of the dozens here some would leave out zero by chance."


# ---- tables


def training_table(study: Likeness) -> Table:
    """Return likeness by step, above that of random weights."""
    runs = study.apart

    def row(step: int) -> tuple[Cell, ...]:
        values = [over_seeds(runs, step, excess(*pair)) for pair in EXCESSES.values()]
        loss = over_seeds(runs, step, lambda one: one["loss"])
        total = paired_t([_layers(study) * over_layers(r, step, _forecast) for r in runs])
        return (
            plain(step),
            _cell(loss, 3),
            *(_percent_cell(one) for one in values),
            _cell(over_seeds(runs, step, cosine("key-value")), 2),
            _cell(total, 4),
        )

    return Table(
        key="over_training",
        title="QKV: keys and values above random weights, by step",
        columns=(
            Column(key="step", title="step"),
            Column(key="loss", title="loss", below="nats"),
            *(Column(key=name, title=name, below="points above random") for name in EXCESSES),
            Column(key="cosine_deviations", title="cosine W_K, W_V", below="deviations, |.|"),
            Column(key="forecast_nats", title="forecast", below="nats, all layers"),
        ),
        rows=tuple(map(row, study.steps)),
    )


def _forecast(one: Figures) -> float:
    return one["forecast"]


def tying_table(study: Likeness) -> Table:
    """Return forecast and rise of each layer of the trained networks."""
    runs, last = study.apart, study.steps[-1]

    def of(number: int, value: Callable[[Figures], float]) -> Estimate:
        return paired_t(
            [
                value(one)
                for run in runs
                for one in run["steps"]
                if one["step"] == last and one["layer"] == number
            ]
        )

    def row(number: int) -> tuple[Cell, ...]:
        return (
            plain(number),
            _cell(of(number, _forecast), 4),
            _cell(of(number, rise), 4),
            _cell(of(number, partial(rise, name="key_alone")), 4),
            _cell(of(number, lambda one: one["score_change"]), 2),
            _percent_cell(of(number, lambda one: one["explained"])),
            _percent_cell(of(number, lambda one: one["explained_chance"])),
        )

    return Table(
        key="tying",
        title="Tying one layer of a trained network",
        columns=(
            Column(key="layer", title="layer"),
            Column(key="forecast_nats", title="forecast", below="nats"),
            Column(key="rise_nats", title="rise", below="nats, best tensor"),
            Column(key="key_alone_nats", title="rise", below="nats, from the key"),
            Column(key="score_change", title="scores move", below="root mean square"),
            Column(key="explained", title="explained", below="%"),
            Column(key="explained_chance", title="random", below="%"),
        ),
        rows=tuple(row(number + 1) for number in range(_layers(study))),
    )


def greedy_table(study: Likeness) -> Table:
    """Return what tying layer after layer costs."""
    runs = study.apart

    def row(count: int) -> tuple[Cell, ...]:
        found = [run["greedy"][count] for run in runs]
        return (
            plain(count + 1),
            plain(", ".join(str(one["layer"]) for one in found)),
            _cell(paired_t([one["forecast"] for one in found]), 4),
            _cell(paired_t([one["rise"] for one in found]), 4),
        )

    return Table(
        key="greedy",
        title="Tying layer after layer, each time that with the lowest forecast",
        columns=(
            Column(key="tied", title="layers tied"),
            Column(key="layers", title="the layer", below="by seed", numeric=False),
            Column(key="forecast_nats", title="forecast", below="nats, sum"),
            Column(key="rise_nats", title="rise", below="nats"),
        ),
        rows=tuple(map(row, range(_layers(study)))),
    )


def symmetry_table(study: Likeness) -> Table:
    """Return queries and keys by step, of both variants."""
    variants = list(dict.fromkeys(run["variant"] for run in study.runs))

    def row(step: int, variant: str) -> tuple[Cell, ...]:
        runs = [run for run in study.runs if run["variant"] == variant]
        return (
            plain(step),
            plain(variant),
            _cell(over_seeds(runs, step, lambda one: one["loss"]), 3),
            _cell(over_seeds(runs, step, cosine("query-key")), 2),
            _cell(over_seeds(runs, step, lambda one: one["score_asymmetry"]), 3),
        )

    return Table(
        key="queries",
        title="Queries and keys, by step",
        columns=(
            Column(key="step", title="step"),
            Column(key="variant", title="variant", numeric=False),
            Column(key="loss", title="loss", below="nats"),
            Column(key="cosine_deviations", title="cosine W_Q, W_K", below="deviations, |.|"),
            Column(key="score_asymmetry", title="asymmetry", below="of the scores"),
        ),
        rows=tuple(row(step, variant) for step in study.steps for variant in variants),
    )


def _cell(estimate: Estimate, digits: int) -> Cell:
    return plain(estimate.mean, _interval(estimate, digits))


def _percent_cell(estimate: Estimate) -> Cell:
    return plain(estimate.mean, _points(estimate))


def _interval(estimate: Estimate, digits: int, factor: float = 1.0) -> str:
    ends = (estimate.mean, estimate.low, estimate.high)
    middle, low, high = (
        numbers.fixed(None if end is None else factor * end, digits) for end in ends
    )
    return middle if estimate.low is None else f"{middle} [{low}, {high}]"


def _points(estimate: Estimate) -> str:
    return _interval(estimate, 1, 100.0)


# ---- picture


def _draw(study: Likeness) -> str:
    charts = (
        Chart(draw=partial(_draw_likeness, study), caption="explained by the key, above random"),
        Chart(
            draw=partial(_draw_forecasts, study),
            caption="tying one layer, nats (1e-6: that or less)",
        ),
    )
    return sheet(Group(blocks=charts))


def _draw_likeness(study: Likeness) -> svg.Drawing:
    found = [
        (step, over_seeds(study.apart, step, excess(*EXCESSES["explained"])))
        for step in study.steps
    ]
    ends = [
        end for _, one in found for end in (one.low, one.mean, one.high, 0.0) if end is not None
    ]
    low, high = svg.padded(ends, 0.08)
    up = svg.Scale(low=low, high=high, start=196, end=24)
    across = svg.Scale(low=0, high=study.steps[-1], start=58, end=320)
    points = [(across(step), up(one.mean or 0.0)) for step, one in found]
    family = FAMILIES[1]
    parts = [
        svg.y_axis(up, 58, 320, lambda value: numbers.percent(value, 0)),
        svg.line((58, up(0.0)), (320, up(0.0)), "reference"),
        svg.x_axis(across, 196, lambda value: f"{value:.0f}", 4),
        svg.text(320, 228, "steps", "axis-title end"),
        svg.element("path", d=svg.path_data(points), class_=f"curve f-{family.key}"),
    ]
    for (x, y), (_, one) in zip(points, found, strict=True):
        if one.low is not None and one.high is not None:
            parts.append(svg.line((x, up(one.low)), (x, up(one.high)), f"whisker f-{family.key}"))
        parts.append(mark(family, x, y, 3.4))
    return svg.Drawing(
        width=330,
        height=234,
        title="Likeness over training",
        description="The share of the value that the key explains above random weights, by step.",
        parts=tuple(parts),
    )


def _draw_forecasts(study: Likeness) -> svg.Drawing:
    layers = [one for run in study.apart for one in run["steps"] if one["step"]]
    places = [(max(one["forecast"], LEAST), max(rise(one), LEAST)) for one in layers]
    low, high = svg.padded([end for place in places for end in place], 0.05, logarithmic=True)
    up = svg.Scale(low=low, high=high, start=196, end=24, logarithmic=True)
    across = svg.Scale(low=low, high=high, start=58, end=320, logarithmic=True)
    parts = [
        svg.y_axis(up, 58, 320, lambda value: f"{value:g}"),
        svg.x_axis(across, 196, lambda value: f"{value:g}", 4),
        svg.line((across(low), up(low)), (across(high), up(high)), "reference"),
        svg.text(8, 12, "rise of the loss", "axis-title"),
        svg.text(320, 228, "forecast (line: equal)", "axis-title end"),
    ]
    last = study.steps[-1]
    for one, (forecast, risen) in zip(layers, places, strict=True):
        hollow = one["step"] != last
        parts.append(mark(FAMILIES[1], across(forecast), up(risen), 3, hollow=hollow))
    return svg.Drawing(
        width=330,
        height=234,
        title="Forecast and rise",
        description="Forecast and rise of the loss when one layer is tied; filled: at the end. "
        "What is at 1e-6 is that or less.",
        parts=tuple(parts),
    )
