"""The effort of a training: passes over its text, and time."""

import math
from collections.abc import Sequence
from dataclasses import replace

from qkvary.costs.parameters import network_parameters
from qkvary.text.names import count
from qkvary.text.numbers import real, whole
from qkvary.text.units import duration
from qkvary.training.config import RunConfig

MOST_PASSES = 16
"""Passes over a text beyond which a language model learns little more: Muennighoff et al. 2023,
"Scaling Data-Constrained Language Models"."""
FEWEST_STEPS = 200
"""Steps below which a smaller batch is the better use of a text."""
LARGEST_TIMED = 1_000_000_000
"""Parameters of networks whose steps would take too long to time."""


def count_passes(run: RunConfig, training_tokens: int | None) -> float | None:
    """Return how often a run reads its text, or None if its tokens are not counted yet."""
    if not training_tokens:
        return None
    training = run.training
    return training.steps * training.batch_size * run.sequence_length / training_tokens


def estimate_seconds(run: RunConfig) -> float | None:
    """Return the seconds of a run's steps here, or None for another device or a large network."""
    if run.device != "cpu" or network_parameters(run.network).total > LARGEST_TIMED:
        return None
    # Other commands need no torch.
    from qkvary.studies.running.timing import estimate_language_seconds

    return estimate_language_seconds(replace(run, seed=0))


def describe_effort(
    run: RunConfig,
    training_tokens: int | None,
    seconds: Sequence[float | None],
    text_bytes: int | None = None,
) -> str:
    """Return passes and time as a sentence, with shorter options if the text is read too often.

    Args:
        run: One of the runs, which differ in variant and seed.
        training_tokens: Tokens of the text, if they are counted.
        seconds: The estimated seconds of each run.
        text_bytes: Bytes of a text whose tokens are not counted; it has no more tokens.
    """
    per_step = run.training.batch_size * run.sequence_length
    parts = [f"{count(run.training.steps, 'step')} of {whole(per_step)} tokens"]
    passes = count_passes(run, training_tokens or text_bytes)
    if passes is not None and not training_tokens:
        parts.append(f"at least {real(passes)} passes over the {whole(text_bytes)} bytes of text")
    elif passes is not None:
        parts.append(f"{real(passes)} passes over the {whole(training_tokens)} training tokens")
    known = [one for one in seconds if one is not None]
    if len(known) == len(seconds):
        runs = "" if len(seconds) == 1 else f" for all {len(seconds)} runs"
        parts.append(
            f"about {duration(sum(known), 2)} on this machine{runs}, validations not counted"
        )
    text = "; ".join(parts)
    if passes is None or passes <= MOST_PASSES:
        return text
    return f"{text}. More than {MOST_PASSES} passes teach little: {_suggest(run, passes)}"


def _suggest(run: RunConfig, passes: float) -> str:
    rows = run.training.steps * run.training.batch_size * MOST_PASSES / passes
    steps = max(1, math.floor(rows / run.training.batch_size))
    if steps >= FEWEST_STEPS:
        return f"try --steps {steps}"
    batch = 2 ** max(0, math.floor(math.log2(rows / FEWEST_STEPS)))
    return f"try --batch-size {batch} --steps {max(1, math.floor(rows / batch))}"
