"""The effort of a training: passes over its text, and time."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import cast

from qkvary.data.reuse import PlannedSet
from qkvary.tasks.config import LanguageTaskConfig
from qkvary.text.names import count
from qkvary.text.numbers import real, whole
from qkvary.text.units import duration
from qkvary.training.config import RunConfig

MOST_PASSES = 16
"""Passes over a text beyond which a language model learns little more: Muennighoff et al. 2023,
"Scaling Data-Constrained Language Models"."""
TEST_PASSES = 3
"""Forward passes of the test: windows, and documents with and without padding."""
FEWEST_STEPS = 200
"""Steps below which a smaller batch is the better use of a text."""


def count_passes(run: RunConfig, training_tokens: int | None) -> float | None:
    """Return how often a run reads its text, or None if its tokens are not counted yet."""
    if not training_tokens:
        return None
    training = run.training
    return training.steps * training.batch_size * run.sequence_length / training_tokens


def estimate_seconds(run: RunConfig, planned: PlannedSet) -> float | None:
    """Return the seconds of a run's steps and evaluations here, or None for another device."""
    if run.device != "cpu":
        return None
    # Other commands need no torch.
    from qkvary.studies.running.timing import estimate_language_seconds

    return estimate_language_seconds(replace(run, seed=0), count_scored(run, planned))


def count_scored(run: RunConfig, planned: PlannedSet) -> int:
    """Return the tokens that all validations and the test score.

    The size of a split that is not prepared is not known: only as many count as are asked for, and
    no more than the text has bytes.
    """
    task = cast("LanguageTaskConfig", run.task)
    splits = {} if planned.data is None else planned.data.splits
    held_out, test = (
        splits[name].tokens if name in splits else None for name in ("validation", "test")
    )
    unknown = planned.text_bytes
    wanted = ((task.validation_tokens, held_out), (task.test_tokens, test or held_out))
    each, last = (
        min((one for one in (*limits, unknown) if one is not None), default=0) for limits in wanted
    )
    return each * -(-run.training.steps // run.training.evaluate_every) + TEST_PASSES * last


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
            f"about {duration(sum(known), 2)} on this machine{runs}, validations and test included"
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
