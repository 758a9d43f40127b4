"""Train a language model: a preset, its variants, and any text."""

import os
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from qkvary.cli._options import (
    DEFAULT_OUT,
    Json,
    Out,
    convert_positive,
    convert_threads,
    options,
    parse_seeds,
    variant_labels,
)
from qkvary.cli._output import command_line, console, print_line, show
from qkvary.cli._streams import print_error
from qkvary.storage.errors import StoppedError
from qkvary.studies.pretraining import TrainingOptions
from qkvary.training.presets import preset_names

if TYPE_CHECKING:
    from qkvary.api.training_result import TrainingResult

PresetName = Annotated[
    str,
    Parameter(
        help="A network and its training: lm-10m, lm-300m, gpt2-124m; an unknown name lists all.",
        completer=lambda _: preset_names(),
    ),
]
Data = Annotated[
    str | None,
    Parameter(
        help="A text file, a folder, a corpus by name, hf:owner/name, or a prepared set. What "
        "is not prepared is prepared. The preset's own corpus if not given."
    ),
]
Seeds = Annotated[
    str, Parameter(name=("--seeds", "--seed"), help="Seeds of the runs: 7 or 0,1,2 or 0-4.")
]
Variants = Annotated[
    tuple[str, ...],
    variant_labels("Labels in any spelling; several are trained one after the other and compared."),
]
DryRun = Annotated[bool, Parameter(help="Print the planned runs, and end.")]
Count = Annotated[int | None, Parameter(converter=convert_positive)]
"""A count of at least 1, such as 32k."""

SHOWN_KEY = 8
"""Digits of a run's key in the next command."""


@options
class Options(TrainingOptions):
    """The options of a training, as they are typed; their help is in the class above."""

    steps: Count = None
    batch_size: Count = None
    context: Count = None
    evaluate_every: Count = None
    validation_tokens: Count = None
    test_tokens: Count = None
    micro_batch_size: Count = None
    keep: Annotated[int, Parameter(converter=convert_positive)] = TrainingOptions().keep
    threads: Annotated[int | None, Parameter(converter=convert_threads)] = None
    compile: Annotated[bool | None, Parameter(negative="--no-compile")] = None
    spike_guard: Annotated[bool | None, Parameter(negative="--no-spike-guard")] = None


DEFAULT_OPTIONS = Options()


def command(
    preset: PresetName,
    /,
    *,
    data: Data = None,
    variants: Variants = (),
    seeds: Seeds = "0",
    given: Options = DEFAULT_OPTIONS,
    out: Out = DEFAULT_OUT,
    dry_run: DryRun = False,
    json_output: Json = False,
) -> int:
    """Train a language model: a preset, its variants, and any text.

    The same command resumes where it stopped, and shows finished runs. Under torchrun all processes
    train one network.
    """
    from qkvary.api.training import train
    from qkvary.cli._training_progress import TrainingDisplay

    is_first = os.environ.get("RANK", "0") == "0"
    display = TrainingDisplay(quiet=json_output)
    try:
        result = train(
            preset,
            data=data,
            variants=variants,
            seeds=parse_seeds(seeds),
            options=given,
            out=out,
            dry_run=dry_run,
            command=command_line("train", f"qkvary train {preset}"),
            display=display,
        )
    except StoppedError as stopped:
        if is_first:
            print_error(str(stopped))
        return stopped.exit_code
    if is_first and dry_run:
        show(result.report, json_output=json_output)
    elif is_first:
        _conclude(result, out, json_output=json_output)
        if result.warning is not None and not json_output:
            print_error(result.warning)
    return result.exit_code


def _conclude(result: "TrainingResult", out: Path, *, json_output: bool) -> None:
    """Write the report, and print the scores and where the networks are."""
    from qkvary.cli._training_scores import print_scores
    from qkvary.reports.study_results import report_folder
    from qkvary.reports.terminal import print_report, print_sentences
    from qkvary.studies.running.trainings import page_name

    study, store, networks = result.study, result.store, result.networks
    files = result.save(report_folder(page_name(store, study), out))
    if json_output:
        show(result.report, json_output=True, networks=networks, files=files)
        return
    screen = console()
    print_scores(screen, study, store)
    if len(study.variants) > 1:
        print_report(result.report, screen)
    else:
        print_sentences(screen, "", result.report.answer)
    for sentence in result.damage:
        print_error(sentence)
    print_line(screen, f"report: {files[0]}")
    trained = {title: path for title, path in networks.items() if path is not None}
    for title, path in trained.items():
        print_line(screen, f"{title}: {path}")
    for path in [*trained.values()][:1]:
        key = path.parent.name[:SHOWN_KEY]
        run = key if out == DEFAULT_OUT else shlex.quote(str(store.path / key))
        print_line(screen, f"next: qkvary generate {run} --temperature 0.7")
