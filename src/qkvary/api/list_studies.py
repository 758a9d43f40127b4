"""List the studies: questions, tasks and numbers of runs."""

from typing import Any

from qkvary.api.results import Result
from qkvary.reports.report import Prose, Report, Section
from qkvary.reports.tables import pick
from qkvary.studies.catalog import load_study, study_names
from qkvary.studies.study import Study
from qkvary.text.names import count


def list_studies() -> Result[tuple[Study, ...]]:
    """List the studies: questions, tasks and numbers of runs."""
    studies = tuple(load_study(name) for name in study_names())
    report = Report(
        subject="studies",
        question="Which studies are there?",
        lead="qkvary study NAME runs a listed study; qkvary study FILE.py runs your own study",
        sections=tuple(map(_section, studies)),
        data={"studies": [_describe(study) for study in studies]},
    )
    return Result(studies, report)


def _section(study: Study) -> Section:
    parts = (
        f"{count(len(study.variants), 'variant')}, {count(len(study.settings), 'setting')}, "
        f"{count(len(study.seeds), 'seed')}: {count(study.count_runs(), 'run')}; "
        f"tasks: {', '.join(_tasks(study))}"
    )
    blocks = (Prose(study.question), Prose(parts, small=True))
    return Section(key=study.name, title=study.name, blocks=blocks, brief=True)


def _tasks(study: Study) -> tuple[str, ...]:
    return tuple(dict.fromkeys(setting.task.name for setting in study.settings))


def _describe(study: Study) -> dict[str, Any]:
    return {
        **pick(study, "name question description"),
        "tasks": _tasks(study),
        "settings": len(study.settings),
        **pick(study, "variants seeds"),
        "runs": study.count_runs(),
        "published": [table.name for table in study.published],
    }
