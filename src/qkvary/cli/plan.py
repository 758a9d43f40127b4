"""Plan a deployment: what can be saved exactly, what fits, what it costs, what is dominated."""

from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.text import Text

from qkvary.checkpoints.errors import UsageError
from qkvary.cli._hardware import Hardware, choose_device
from qkvary.cli._models import (
    Decimal,
    ModelName,
    VariantLabels,
    choose_context,
    find_model,
    notes_of,
    read_formats,
)
from qkvary.cli._options import Json
from qkvary.cli._output import console, print_json, printable
from qkvary.cli._plans import Load, Purpose, Question
from qkvary.cli._serving_output import (
    ServingAnswer,
    print_head,
    print_savings,
    print_serving,
    question_to_dict,
    serving_to_dict,
)
from qkvary.cli._training_output import TrainingAnswer, print_training, training_to_dict
from qkvary.cli._units import parse_share
from qkvary.costs.candidates import choose_candidates
from qkvary.costs.exact_savings import find_savings
from qkvary.costs.formats import parse_format
from qkvary.costs.parameters import model_parameters
from qkvary.studies.advice import (
    advise_serving,
    advise_task,
    caveats_of,
    nearest_size,
    serve_variants,
)
from qkvary.studies.training_advice import advise_training, train_variants

DEFAULT_HARDWARE = Hardware()
DEFAULT_LOAD = Load()
DEFAULT_PURPOSE = Purpose()


def command(
    model: ModelName,
    /,
    *,
    variant: VariantLabels = (),
    hardware: Hardware = DEFAULT_HARDWARE,
    load: Load = DEFAULT_LOAD,
    purpose: Purpose = DEFAULT_PURPOSE,
    decimal: Decimal = False,
    json_output: Json = False,
) -> None:
    """Plan a deployment: what can be saved exactly, what fits, what it costs, what is dominated.

    Speeds are roofline times: the least that bandwidth and arithmetic allow. Published changes of
    quality are those of networks trained from scratch, not of converted ones.
    """
    question = _resolve(model, variant, hardware, load, purpose)
    notes = notes_of(question.model, question.candidates, question.context)
    screen = None if json_output else console()
    if screen is not None:
        print_head(screen, question, decimal=decimal)
    if question.trains:
        trained = _answer_training(question)
        if screen is None:
            print_json({**question_to_dict(question), **training_to_dict(trained), "notes": notes})
            return
        print_training(screen, question, trained.rows, decimal=decimal)
        _print_words(screen, trained.advice, (*trained.caveats, *notes))
        return
    served = _answer_serving(question)
    if screen is None:
        print_json({**question_to_dict(question), **serving_to_dict(served), "notes": notes})
        return
    print_savings(screen, question, report=served.savings, decimal=decimal)
    print_serving(screen, question, served.rows, decimal=decimal)
    _print_words(screen, served.advice, (*served.caveats, *notes))


def _resolve(
    name: str, labels: Sequence[str], hardware: Hardware, load: Load, purpose: Purpose
) -> Question:
    if load.users < 1:
        raise UsageError(f"expected --users of at least 1, got {load.users}")
    device = choose_device(hardware)
    model = find_model(name)
    return Question(
        model=model,
        candidates=choose_candidates(model, labels),
        device=device,
        context=choose_context(model, load.context),
        load=load,
        purpose=purpose,
        reserve=parse_share(hardware.reserve),
        utilization=parse_share(purpose.utilization),
        price=hardware.price,
        formats=read_formats(load.dtype),
        weights=parse_format(load.weights),
    )


def _answer_serving(question: Question) -> ServingAnswer:
    size = nearest_size(model_parameters(question.model).total)
    rows = serve_variants(question.candidates.rows, question.demand, question.formats, size=size)
    return ServingAnswer(
        savings=find_savings(
            question.model,
            context=question.context,
            stored_as=question.formats[0],
            encoder_tokens=question.load.encoder_tokens,
        ),
        rows=rows,
        advice=(*advise_serving(rows), *advise_task(question.load.task)),
        caveats=caveats_of(row.quality for row in rows),
    )


def _answer_training(question: Question) -> TrainingAnswer:
    rows = train_variants(
        [row for row in question.candidates.rows if row.saving is None],
        device=question.device,
        tokens=question.context,
        precision=question.purpose.precision,
        checkpointing=question.purpose.checkpointing,
        reserve=question.reserve,
        utilization=question.utilization,
        size=nearest_size(model_parameters(question.model).total),
    )
    return TrainingAnswer(
        rows=rows,
        advice=(*advise_training(rows), *advise_task(question.load.task)),
        caveats=caveats_of(row.quality for row in rows),
    )


def _print_words(screen: Console, advice: Iterable[str], caveats: Iterable[str]) -> None:
    for title, sentences in (("Advice", advice), ("Know that", caveats)):
        screen.print(Text(f"\n{title}", style="bold"))
        for sentence in sentences:
            screen.print(Text(f"  - {printable(sentence)}"))
