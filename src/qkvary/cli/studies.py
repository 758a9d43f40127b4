"""List the studies: questions, tasks and numbers of runs."""

from dataclasses import dataclass

from qkvary.cli._options import Json
from qkvary.cli._output import show
from qkvary.reports.report import Prose, Report, Section
from qkvary.studies.catalog import load_study, study_names
from qkvary.studies.study import Study
from qkvary.text.names import count


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyEntry:
    """The listed facts of a study."""

    name: str
    question: str
    description: str
    tasks: tuple[str, ...]
    settings: int
    variants: tuple[str, ...]
    seeds: tuple[int, ...]
    runs: int
    published: tuple[str, ...]


def command(*, json_output: Json = False) -> None:
    """List the studies: questions, tasks and numbers of runs."""
    studies = [_describe(load_study(name)) for name in study_names()]
    report = Report(
        subject="studies",
        question="Which studies are there?",
        lead="qkvary study NAME runs one; qkvary study FILE.py runs one of your own",
        sections=tuple(map(_section, studies)),
        data={"studies": studies},
    )
    show(report, json_output=json_output)


def _section(study: StudyEntry) -> Section:
    parts = (
        f"{count(len(study.variants), 'variant')}, {count(study.settings, 'setting')}, "
        f"{count(len(study.seeds), 'seed')}: {count(study.runs, 'run')}; "
        f"tasks: {', '.join(study.tasks)}"
    )
    blocks = (Prose(study.question), Prose(parts, small=True))
    return Section(key=study.name, title=study.name, blocks=blocks, brief=True)


def _describe(study: Study) -> StudyEntry:
    return StudyEntry(
        name=study.name,
        question=study.question,
        description=study.description,
        tasks=tuple(dict.fromkeys(setting.task.name for setting in study.settings)),
        settings=len(study.settings),
        variants=study.variants,
        seeds=study.seeds,
        runs=study.count_runs(),
        published=study.published,
    )
