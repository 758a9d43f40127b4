"""Computes the summary of a study from its records. Never imports torch.

The parts are in ``observations`` (the runs), ``table_inputs`` and ``result_tables`` (the tables,
their rows and contrasts), ``comparisons`` (differences), ``frontier``, ``learning_curves``,
``published_comparison``, ``headline`` and ``answers``.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import fmean

from qkvary.arch.canonical import PACKAGE, not_counted
from qkvary.arch.labels import parse_label
from qkvary.costs.parameters import network_parameters
from qkvary.studies.records import Record
from qkvary.studies.results.answers import write_answers, write_caveats
from qkvary.studies.results.comparisons import CONFIDENCE, POWER
from qkvary.studies.results.frontier import build_frontiers
from qkvary.studies.results.headline import describe_repeats, write_headline
from qkvary.studies.results.learning_curves import Event, build_curves
from qkvary.studies.results.observations import Observation, choose_learning_rates, count, observe
from qkvary.studies.results.published_comparison import compare_published
from qkvary.studies.results.result_tables import build_contrasts, build_tables, compare_pairwise
from qkvary.studies.results.summary import Contrast, Method, ResultTable, RunRow, Summary
from qkvary.studies.results.table_inputs import collect_inputs, specify_tables
from qkvary.studies.study import Study
from qkvary.text.names import listed
from qkvary.text.numbers import real

LEARNT = 0.1
"""A network counts as having learnt if it covers at least this share of the distance from a guess
to a perfect score."""

_CONFIGURED = {"device", "kernel"}
"""Keys of a record's environment that follow from its configuration, not from the machine."""
_PAIRING = (
    "Differences are paired: each compares a variant with the baseline in the same setting with "
    "the same seed. Over several settings, the differences are averaged for each seed first, "
    "because the seeds are the independent units."
)
_STEPS = (
    "In means of the steps to solve, a run that did not solve the task counts with all its "
    "training steps (restricted mean). The share of solved runs has a Wilson interval."
)
_SPREAD = (
    "The spread over seeds is the sample standard deviation within settings; the spread over "
    "settings is the population standard deviation that the papers print."
)


def summarise(
    study: Study,
    records: Iterable[Record],
    *,
    curves: Mapping[str, Iterable[Event]] | None = None,
    damaged: Mapping[str, str] | None = None,
    commands: Sequence[str] = (),
) -> Summary:
    """Return the summary that every report of the study shows.

    Args:
        study: The study.
        records: Records of the study's runs; records of other runs are ignored.
        curves: The log of each run by run key, for learning curves.
        damaged: A description of the damage for each run that cannot be read, by run key.
        commands: The commands that reproduce the runs and the report.
    """
    observations, learning_rates = choose_learning_rates(
        study, observe(study, records, damaged or {})
    )
    inputs = collect_inputs(study, observations)
    tables = build_tables(inputs, specify_tables(study, observations))
    contrasts = build_contrasts(inputs, tables)
    runs = tuple(observation.row for observation in observations)
    counts = count(runs)
    own_tables = {setting.table for setting in study.settings if setting.table is not None}
    headline_table, headline = write_headline(tables, contrasts, inputs.baseline, own_tables)
    environments = _environments(observations)
    made = {run.run_key: run for run in runs}.values()
    chance, is_all = _describe_chance(study, runs)
    published = tuple(compare_published(table, study, tables, runs) for table in study.published)
    return Summary(
        study=study.name,
        question=study.question,
        description=study.description,
        baseline=inputs.baseline,
        variants=study.labels,
        seeds=tuple(study.seeds),
        counts=counts,
        # If nothing was learnt, there is nothing to compare.
        headline=(
            *chance,
            *(() if is_all else (*describe_repeats(published), *headline)),
        ),
        headline_table=headline_table,
        answers=write_answers(tables, inputs.baseline),
        commands=tuple(commands),
        caveats=(
            *write_caveats(
                study.limits, counts, tables, study.seeds, learning_rates, len(environments)
            ),
            *_log_caveats(curves or {}),
            *_cost_caveats(study),
        ),
        method=_method(study, tables, contrasts),
        tables=tables,
        contrasts=contrasts,
        # Charts are for averages and tasks; single settings have only tables.
        frontiers=tuple(
            chart
            for table in tables
            if table.kind != "setting"
            for chart in build_frontiers(table, compare_pairwise(inputs, table))
        ),
        curves=build_curves(observations, curves or {}),
        learning_rates=learning_rates,
        published=published,
        runs=runs,
        environments=environments,
        training_seconds=sum(run.training_seconds or 0.0 for run in made),
        total_seconds=sum(run.total_seconds or 0.0 for run in made),
        started=min((run.record.started for run in observations if run.record), default=None),
        ended=max((run.record.ended for run in observations if run.record), default=None),
    )


def _describe_chance(study: Study, runs: Iterable[RunRow]) -> tuple[tuple[str, ...], bool]:
    """Return a sentence that names the settings in which no variant visibly beats guessing.

    Without such settings, there is no sentence. The second value tells whether no setting with
    results has a variant that visibly beats guessing.
    """
    values: dict[str, dict[str, list[float]]] = {}
    metrics: dict[str, str] = {}
    for run in runs:
        if run.selected and run.value is not None and run.metric is not None:
            values.setdefault(run.setting, {}).setdefault(run.variant, []).append(run.value)
            metrics[run.setting] = run.metric
    settings = [setting for setting in study.settings if setting.name in values]
    guesses = {
        setting.name: f"{metrics[setting.name].removeprefix('test_')} {real(scale.guess)}"
        for setting in settings
        if (scale := setting.task.scale(setting.network, metrics[setting.name])) is not None
        and max(scale.learnt(fmean(some)) for some in values[setting.name].values()) < LEARNT
    }
    if not guesses:
        return (), False
    sentence = (
        f"Little or nothing was learnt on {listed([*guesses])}: the mean of no variant is visibly "
        f"better than guessing ({listed([*dict.fromkeys(guesses.values())])})."
    )
    return (sentence,), len(guesses) == len(settings)


def _environments(
    observations: Sequence[Observation],
) -> tuple[tuple[tuple[str, str], ...], ...]:
    """Return the distinct environments of the runs, in the order of their first run.

    A failed run may have recorded less than others. So two environments are the same if they agree
    in everything that both runs recorded, and in whether settings were changed on resuming.
    """
    found: list[dict[str, str]] = []
    for run in observations:
        if run.record is None:
            continue
        unchanged = {} if run.record.status == "failed" else {"changed": ""}
        known = {
            name: str(value)
            for name, value in {**unchanged, **run.record.environment}.items()
            if name not in _CONFIGURED and value is not None
        }
        same = next(
            (one for one in found if all(one[name] == known[name] for name in one.keys() & known)),
            None,
        )
        if same is None:
            found.append(known)
        else:
            same.update(known)
    return tuple(
        tuple((name, value) for name, value in one.items() if (name, value) != ("changed", ""))
        for one in found
    )


def _cost_caveats(study: Study) -> tuple[str, ...]:
    """State the parts of user-defined networks that the costs do not count."""
    networks = {
        setting.network_of(parse_label(label), parse_label(study.baseline))
        for setting in study.settings
        for label in study.variants_of(setting)
        if "@own-" in label or type(setting.network).__module__.partition(".")[0] != PACKAGE
    }
    parts = [*dict.fromkeys(part for one in networks for part in not_counted(one))]
    return (f"The costs do not count {listed(sorted(parts))}.",) if parts else ()


def _log_caveats(logs: Mapping[str, Iterable[Event]]) -> tuple[str, ...]:
    """State the number of runs whose curves lack steps because their log was damaged."""
    cut = sum(any(event.get("event") == "cut" for event in log) for log in logs.values())
    sentence = (
        f"The curves of {cut} of {len(logs)} runs lack steps: their logs were damaged, which "
        "changes neither weights nor scores."
    )
    return (sentence,) if cut else ()


def _method(study: Study, tables: Sequence[ResultTable], contrasts: Sequence[Contrast]) -> Method:
    headline = [table for table in tables if table.kind != "setting"]
    family = sum(row.difference is not None for table in headline for row in table.rows)
    contrast_family = sum(row.kind != "setting" for one in contrasts for row in one.rows)
    percent = f"{100 * CONFIDENCE:g} %"
    planned = (
        "Planned contrasts pair a variant with its reference by setting and seed, or only by seed "
        f"if the two have different settings. Their intervals have {percent} confidence after "
        f"Bonferroni's correction for {contrast_family} comparisons. These comparisons are the "
        "contrasts in averages and tasks, which form one family. The contrasts in single settings "
        "form a separate family."
    )
    return Method(
        confidence=CONFIDENCE,
        correction="bonferroni",
        family=family,
        interval="paired t",
        power=POWER,
        sentences=(
            _PAIRING,
            (
                f"Intervals are {percent} Student's t intervals with Bonferroni's correction for "
                f"{family} comparisons, which are those in averages and tasks. Comparisons in "
                "single settings form a separate family. Comparisons of steps to solve form two "
                "more families in the same way. Each family is corrected separately: with "
                f"{percent} confidence, all its intervals hold simultaneously."
            ),
            (
                "p-values are adjusted by Holm's method, which is less conservative. A p-value can "
                "therefore be below the significance level although the interval includes zero."
            ),
            (
                "A difference is supported if its interval excludes zero. Otherwise the report "
                "states how large a true difference would have to be for this study to detect it "
                f"with {100 * POWER:g} % probability."
            ),
            *((planned,) if contrasts else ()),
            _STEPS,
            _SPREAD,
            *describe_equal_parameters(study),
        ),
    )


def describe_equal_parameters(study: Study) -> Iterator[str]:
    """State the feed-forward widths of the variants in each setting with ``equal_parameters``.

    In such a setting all variants have about the same number of parameters.
    """
    baseline = parse_label(study.baseline)
    for setting in study.settings:
        if not setting.equal_parameters:
            continue
        labels = study.variants_of(setting)
        networks = {label: setting.network_of(parse_label(label), baseline) for label in labels}
        target = setting.network.with_variant(baseline)
        given = ", ".join(
            f"{label} {network.block.d_ff:,} ({network_parameters(network).total:,} parameters)"
            for label, network in networks.items()
            if network != target
        )
        yield (
            f"In {setting.name} every variant has about as many parameters as {study.baseline} "
            f"({network_parameters(target).total:,} with a feed-forward width of "
            f"{target.block.d_ff:,}). The other variants have these feed-forward widths: "
            f"{given}."
        )
