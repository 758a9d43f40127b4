"""``qk.generate`` and ``qk.evaluate``: texts continued and scored by a language model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import overload

from qkvary.api.checkpoints import Checkpoint, open_checkpoint
from qkvary.api.models import read_count
from qkvary.api.results import Result
from qkvary.inference.decoding import complete
from qkvary.inference.evaluation.identity import identify
from qkvary.inference.evaluation.reading import Split, TextReading
from qkvary.inference.evaluation.text_measurement import TextMeasurement, measure_text
from qkvary.inference.prompts import choose_sampling, make_requests
from qkvary.reports.evaluation import evaluation_report, text_data


@overload
def generate(
    model: Checkpoint,
    prompt: str,
    *,
    tokens: int | str | None = None,
    temperature: float | None = None,
    top_k: int | None = None,
    top_p: float | None = None,
    min_p: float | None = None,
    repetition_penalty: float = 1.0,
    stop: str | Sequence[str] = (),
    seed: int = 0,
) -> str: ...


@overload
def generate(
    model: Checkpoint,
    prompt: list[str] | tuple[str, ...],
    *,
    tokens: int | str | None = None,
    temperature: float | None = None,
    top_k: int | None = None,
    top_p: float | None = None,
    min_p: float | None = None,
    repetition_penalty: float = 1.0,
    stop: str | Sequence[str] = (),
    seed: int = 0,
) -> list[str]: ...


def generate(
    model: Checkpoint,
    prompt: str | Sequence[str],
    *,
    tokens: int | str | None = None,
    temperature: float | None = None,
    top_k: int | None = None,
    top_p: float | None = None,
    min_p: float | None = None,
    repetition_penalty: float = 1.0,
    stop: str | Sequence[str] = (),
    seed: int = 0,
) -> str | list[str]:
    """Continue a text, or several together.

    The same call gives the same text on the same machine, and a prompt the same text with any other
    prompts.

    Args:
        model: The name or path of a checkpoint, or what ``qk.load`` returned.
        prompt: The text to continue, or several.
        tokens: Maximum new tokens; by default as many as the model has positions for, up to 256.
        temperature: The divisor of the logits; 0 takes the most probable token. By default 0, or 1
            with a filter.
        top_k: Choose among the k most probable tokens.
        top_p: Choose among the fewest tokens of this probability.
        min_p: Drop tokens below this share of the highest probability.
        repetition_penalty: Above 1: penalise tokens seen before.
        stop: End before this text, or any of several.
        seed: Seed of the random numbers.

    Returns:
        The new text, without the prompt; a list of them for several prompts.

    Raises:
        ValueError: if there is no such checkpoint, it has no tokenizer, or a prompt or a number is
            out of its range.
        DamagedError: if the checkpoint is damaged.
    """
    loaded, _ = open_checkpoint(model)
    if loaded.tokenizer is None:
        raise ValueError("expected a checkpoint with a tokenizer, got one without")
    several = [prompt] if isinstance(prompt, str) else list(prompt)
    requests = make_requests(
        loaded.tokenizer,
        several,
        max_tokens=loaded.network.config.max_tokens,
        tokens=None if tokens is None else read_count(tokens),
        sampling=choose_sampling(
            temperature,
            top_k=top_k,
            top_p=top_p,
            min_p=min_p,
            repetition_penalty=repetition_penalty,
        ),
        stop=(stop,) if isinstance(stop, str) else tuple(stop),
        seed=seed,
    )
    answers = complete(loaded.network, requests, tokenizer=loaded.tokenizer)
    texts = [answer.text for answer in answers]
    return texts[0] if isinstance(prompt, str) else texts


def evaluate(
    model: Checkpoint,
    data: str | Path | Sequence[str | Path],
    *,
    split: Split = "validation",
    tokens: int | str | None = None,
    context: int | str | None = None,
    stride: int | str | None = None,
    joined: bool = False,
    lengths: Sequence[int | str] = (),
    paper: bool = True,
    batch_size: int = 8,
) -> Result[TextMeasurement]:
    """Score a language model on a text: perplexity per token, per byte and as the papers counted.

    Args:
        model: The name or path of a checkpoint, or what ``qk.load`` returned.
        data: Files or folders of .txt and .jsonl, or a prepared set.
        split: The split of a prepared set.
        tokens: Maximum number of tokens to read.
        context: Maximum tokens before a target; by default the maximum of the network.
        stride: Tokens between starts of windows; as many as ``context`` by default.
        joined: Read documents one after the other, not separately.
        lengths: Also give the perplexity by position from windows of these lengths.
        paper: Also count as the papers did: a document per row, padded with separators.
        batch_size: Windows per batch; changes rounding only.

    Raises:
        ValueError: if there is no such checkpoint or text, or the network cannot read such windows.
        DamagedError: if the checkpoint or the set is damaged.
    """
    loaded, name = open_checkpoint(model)
    paths = [data] if isinstance(data, str | Path) else data
    reading = TextReading(
        data=tuple(Path(path).expanduser() for path in paths),
        split=split,
        tokens=None if tokens is None else read_count(tokens),
        context=None if context is None else read_count(context),
        stride=None if stride is None else read_count(stride),
        joined=joined,
        lengths=tuple(dict.fromkeys(map(read_count, lengths))),
        paper=paper,
    )
    if read_count(batch_size) < 1:
        raise ValueError(f"expected a batch_size of at least 1, got {batch_size}")
    measured = measure_text(loaded, reading, batch_size=batch_size)
    document = {
        "checkpoint": name,
        "batch_size": batch_size,
        "identity": identify(loaded.network, loaded.tokenizer),
        **text_data(measured),
    }
    return Result(measured, evaluation_report(document))
