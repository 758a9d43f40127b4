"""A report of each subject."""

import dataclasses
from collections.abc import Callable, Mapping
from functools import cache

from qkvary.reports.analysis import analysis_report
from qkvary.reports.plan import plan_report
from qkvary.reports.report import Report, Section, walk
from qkvary.reports.study import study_report
from qkvary.reports.tables import Table
from qkvary.reports.training import training_report
from qkvary.studies.results.summary import Summary
from tests.analysis.examples import make_analysis
from tests.reports.plan_examples import make_plan
from tests.reports.synthetic import make_attention, make_summary, renamed


def small_summary() -> Summary:
    summary = make_summary(("QKV", "Q-K=V", "MQA"), 2)
    settings = {run.setting for run in summary.runs if run.task in ("reverse", "characters")}
    curves = tuple(curve for curve in summary.curves if curve.setting in settings)
    return dataclasses.replace(summary, curves=curves)


@cache
def study(text: str = "") -> Report:
    """A study with a text in front of everything that comes from outside."""
    summary = renamed(small_summary(), text)
    return study_report(summary, make_attention(summary, 5)[:4])


@cache
def training() -> Report:
    return training_report(small_summary(), {"QKV": "once upon"})


@cache
def plan() -> Report:
    return plan_report(make_plan())


@cache
def analysis() -> Report:
    return analysis_report(make_analysis(), "model")


def section(report: Report, key: str) -> Section:
    return next(one for one in report.sections if one.key == key)


def tables(report: Report) -> dict[str, Table]:
    blocks = [block for one in report.sections for block in walk(one.blocks)]
    return {block.key: block for block in blocks if isinstance(block, Table)}


SUBJECTS: Mapping[str, Callable[[], Report]] = {
    "study": study,
    "training": training,
    "plan": plan,
    "analysis": analysis,
}
