"""List the studies: questions, tasks and numbers of runs."""

from dataclasses import dataclass

from rich.text import Text

from qkvary.cli._options import Json
from qkvary.cli._output import console, print_json
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
    if json_output:
        print_json({"studies": studies})
        return
    screen = console()
    for study in studies:
        screen.print(Text(study.name, style="bold"))
        screen.print(Text(f"  {study.question}"))
        parts = (
            f"{count(len(study.variants), 'variant')}, {count(study.settings, 'setting')}, "
            f"{count(len(study.seeds), 'seed')}: {count(study.runs, 'run')}; "
            f"tasks: {', '.join(study.tasks)}"
        )
        screen.print(Text(f"  {parts}", style="dim"))
    screen.print("\n`qkvary study NAME` runs one; `qkvary study FILE.py` runs one of your own")


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
