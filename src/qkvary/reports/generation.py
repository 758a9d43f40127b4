"""The report of generated texts: prompts, answers, and the probability of each token."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from qkvary.data.tokenizers import Tokenizer
from qkvary.inference.requests import Completion, Request
from qkvary.inference.streaming import detokenize
from qkvary.reports.report import Report, Section
from qkvary.reports.tables import Table, number, pick, tabulate, word

if TYPE_CHECKING:
    from qkvary.inference.beams import Beam


def generation_report(
    tokenizer: Tokenizer,
    prompts: Sequence[str],
    requests: Sequence[Request],
    answers: Sequence[Completion],
    beams: "Sequence[list[Beam]]",
) -> Report:
    """Return the report of generated texts.

    The JSON data of the report is one answer, or an object with a list of ``answers`` if there are
    several. ``beams`` has the beams of each answer; ``beams`` is empty without beam search.
    """
    documents: list[dict[str, Any]] = [
        {
            "prompt": prompt,
            "prompt_tokens": request.prompt,
            **pick(answer, "text tokens finish logprobs"),
            **pick(request, "sampling stop seed"),
        }
        for prompt, request, answer in zip(prompts, requests, answers, strict=True)
    ]
    for document, some in zip(documents, beams, strict=False):
        document["beams"] = some
    if beams:
        tables = [_list_beams(some) for some in beams if requests[0].logprobs]
    else:
        tables = [
            _list_logprobs(tokenizer, request, answer)
            for request, answer in zip(requests, answers, strict=True)
            if answer.logprobs is not None
        ]
    section = Section(key="tokens", title="", blocks=tuple(tables), brief=True)
    return Report(
        subject="generated text",
        question="",
        sections=(section,) if tables else (),
        data=documents[0] if len(documents) == 1 else {"answers": documents},
    )


def _list_logprobs(tokenizer: Tokenizer, request: Request, answer: Completion) -> Table:
    before = [request.prompt[-1], *answer.tokens]
    rows = [
        {"token": token, "text": repr(detokenize(tokenizer, [token], after=after)), "log": logprob}
        for token, after, logprob in zip(
            answer.tokens, before[: len(answer.tokens)], answer.logprobs or (), strict=True
        )
    ]
    log = number("log", "log-probability", "{:.4f}".format)
    return tabulate("tokens", "", rows, number("token"), word("text"), log, main=True)


def _list_beams(beams: "list[Beam]") -> Table:
    return tabulate(
        "tokens",
        "",
        beams,
        number("score", write="{:.4f}".format),
        number("logprob", "log-probability", "{:.4f}".format),
        number("tokens", write=lambda tokens: str(len(tokens))),
        word("text", write=repr),
        main=True,
    )
