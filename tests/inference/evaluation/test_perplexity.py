"""Perplexities per token, per byte and by the papers' protocol, checked independently."""

import dataclasses
import itertools
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from qkvary.checkpoints.catalog import load_checkpoint
from qkvary.data.tokenizers import Tokenizer
from qkvary.inference.evaluation.perplexity import Protocol, score_as_papers, score_text
from qkvary.inference.evaluation.texts import make_text, open_split
from qkvary.tasks.config import LanguageTaskConfig
from qkvary.tasks.language import LanguageTask
from tests.checkpoints.published_models import (
    KINDS,
    find_model,
    held_out_characters,
    read_reference,
    stories,
)
from tests.data.merged import TEXT
from tests.data.small_sets import make_set
from tests.data.test_library_tokenizers import like_gpt2, with_spaces
from tests.inference.evaluation.test_texts import pieces as make_pieces
from tests.tasks.test_language import make_model, make_task
from tests.tasks.tiny_networks import tiny_network, tiny_set

SIDE_BY_SIDE = Protocol(context=7, stride=7, batch_size=3)


def test_a_packed_evaluation_is_the_joined_one() -> None:
    expected = make_task().evaluate(make_model(make_task()), "validation")
    _, text = open_split(tiny_set().path, "validation")
    found = score_text(
        make_model(make_task()), text, dataclasses.replace(SIDE_BY_SIDE, joined=True)
    )
    assert found.loss == pytest.approx(expected["loss"], rel=1e-12)
    assert found.perplexity == pytest.approx(expected["perplexity"], rel=1e-12)
    assert found.bits_per_byte == pytest.approx(expected["bits_per_byte"], rel=1e-12)
    assert found.byte_perplexity == pytest.approx(2**found.bits_per_byte, rel=1e-12)
    assert found.marks == found.documents


DOCUMENTS = ("the cat sat on the mat", "the hat and the cat", "on the cat", "the end")


@pytest.mark.parametrize("make", [with_spaces, like_gpt2, make_pieces])
def test_training_and_evaluation_count_the_same_bytes(
    make: Callable[[], Tokenizer], tmp_path: Path
) -> None:
    """Whatever a tokenizer does about spaces: those of the documents, and no other."""
    data = make_set(tmp_path, [TEXT, *DOCUMENTS], DOCUMENTS, tokenizer=make())
    config = LanguageTaskConfig(data=str(data.path), data_sha256=data.fingerprint, context=64)
    tiny = tiny_network("language", length=64)
    model = LanguageTask(config).build(dataclasses.replace(tiny, vocabulary=data.vocabulary), 3)
    _, text = open_split(data.path, "validation")
    assert text.count_bytes(np.ones_like(text.tokens, dtype=bool)) == sum(map(len, DOCUMENTS))
    for name in ("packed", "padded-paper"):
        task = LanguageTask(dataclasses.replace(config, protocol=name))
        expected = task.evaluate(model.double().eval(), "validation")
        protocol = Protocol(context=64, stride=64, joined=name == "packed")
        found = score_text(model, text, protocol)
        assert found.loss == pytest.approx(expected["loss"], rel=1e-12)
        assert found.bits_per_byte == pytest.approx(expected["bits_per_byte"], rel=1e-12)


def test_the_papers_protocol_is_that_of_training() -> None:
    expected = make_task().evaluate(make_model(make_task()), "test")
    _, text = open_split(tiny_set().path, "test")
    found = score_as_papers(make_model(make_task()), text, context=7, batch_size=3)
    assert found.loss == pytest.approx(expected["paper_loss"], rel=1e-12)
    assert found.perplexity == pytest.approx(expected["paper_perplexity"], rel=1e-12)
    assert found.real_loss == pytest.approx(expected["document_loss"], rel=1e-12)
    assert found.real_share == pytest.approx(expected["real_share"], rel=1e-12)
    share = found.real_share
    mixed = share * found.real_loss + (1 - share) * found.pad_loss
    assert found.loss == pytest.approx(mixed, rel=1e-12)
    assert found.real_perplexity == pytest.approx(math.exp(found.real_loss), rel=1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_stories_have_the_published_loss(
    kind: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = find_model("stories260K", kind, tmp_path_factory)
    expected = read_reference(folder)["validation"]
    loaded = load_checkpoint(folder)
    text = make_text(loaded.tokenizer, stories(kind))
    context = loaded.network.config.max_tokens
    found = score_as_papers(loaded.network, text, context=context)
    assert found.real_loss == pytest.approx(expected["mean_nll_nats"], abs=2e-6)
    assert found.rows == len(stories(kind))
    count = round(found.real_share * found.rows * context)
    assert count == expected["predicted_tokens"]


@pytest.mark.parametrize("kind", KINDS)
def test_characters_have_the_published_loss(
    kind: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = find_model("shakespeare_char_mha", kind, tmp_path_factory)
    expected = read_reference(folder)["validation"]
    loaded = load_checkpoint(folder)
    context = loaded.network.config.max_tokens
    characters = held_out_characters(kind)
    most = (len(characters) - 1) // context * context + 1
    text = make_text(loaded.tokenizer, [characters], most=most)
    found = score_text(
        loaded.network, text, Protocol(context=context, stride=context, batch_size=32)
    )
    assert found.loss == pytest.approx(expected["mean_nll_nats"], abs=2e-6)
    assert found.bits_per_byte == pytest.approx(found.loss / math.log(2), rel=1e-12)
    assert found.marks == 0
    assert math.isnan(found.mark_loss)


def test_the_error_is_that_of_a_mean_over_stretches() -> None:
    _, text = open_split(tiny_set().path, "train")
    model = make_model(make_task())
    found = score_text(model, text, SIDE_BY_SIDE)
    parts: list[tuple[float, int]] = []
    for first, end in text.spans().tolist():
        row = torch.from_numpy(text.tokens[first:end])
        losses = [
            -model(row[None, start : start + 7])[0].log_softmax(-1)[: end - first - 1 - start]
            for start in range(0, end - first - 1, 7)
        ]
        flat = [
            window[offset, row[start + offset + 1]].item()
            for start, window in zip(range(0, end - first - 1, 7), losses, strict=True)
            for offset in range(min(7, end - first - 1 - start))
        ]
        # Stretches are counted from the first token of a document, which is no target.
        cuts = [0, *range(6, len(flat), 7), len(flat)]
        parts += [(sum(flat[a:b]), b - a) for a, b in itertools.pairwise(cuts) if b > a]
    total, count = sum(part for part, _ in parts), sum(number for _, number in parts)
    assert found.loss == pytest.approx(total / count, rel=1e-12)
    spread = sum((part - found.loss * number) ** 2 for part, number in parts)
    expected = math.sqrt(spread * len(parts) / (len(parts) - 1)) / count
    assert found.loss_error == pytest.approx(expected, rel=1e-10)
