"""Plan a deployment: what can be saved exactly, what fits, what it costs, what is dominated."""

from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.text import Text

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
    print_head,
    print_savings,
    print_serving,
    question_to_dict,
    serving_to_dict,
)
from qkvary.cli._training_output import print_training, training_to_dict
from qkvary.cli._units import parse_share
from qkvary.costs.candidates import choose_candidates
from qkvary.costs.formats import parse_format
from qkvary.studies.plans import Regime, TrainingAnswer, answer_serving, answer_training

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
    if question.trains:
        trained = _answer_training(question)
        if json_output:
            print_json({**question_to_dict(question), **training_to_dict(trained), "notes": notes})
            return
        screen = console()
        print_head(screen, question, decimal=decimal)
        print_training(screen, question, trained.rows, decimal=decimal)
        _print_words(screen, trained.advice, (*trained.caveats, *notes))
        return
    served = answer_serving(
        question.candidates, question.demand, question.formats, task=question.load.task
    )
    if json_output:
        print_json({**question_to_dict(question), **serving_to_dict(served), "notes": notes})
        return
    screen = console()
    print_head(screen, question, decimal=decimal)
    print_savings(screen, question, report=served.savings, decimal=decimal)
    print_serving(screen, question, served.rows, decimal=decimal)
    _print_words(screen, served.advice, (*served.caveats, *notes))


def _resolve(
    name: str, labels: Sequence[str], hardware: Hardware, load: Load, purpose: Purpose
) -> Question:
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


def _answer_training(question: Question) -> TrainingAnswer:
    regime = Regime(
        precision=question.purpose.precision,
        checkpointing=question.purpose.checkpointing,
        utilization=question.utilization,
    )
    return answer_training(question.candidates, question.demand, regime, task=question.load.task)


def _print_words(screen: Console, advice: Iterable[str], caveats: Iterable[str]) -> None:
    for title, sentences in (("Advice", advice), ("Know that", caveats)):
        screen.print(Text(f"\n{title}", style="bold"))
        for sentence in sentences:
            screen.print(Text(f"  - {printable(sentence)}"))
