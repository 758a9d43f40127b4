"""Translation: losses that padding dilutes or not, BLEU of what is generated, words of training."""

import gzip
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from qkvary.arch.attention import AttentionConfig
from qkvary.arch.labels import parse_variant
from qkvary.arch.networks import BlockConfig, EncoderDecoderConfig
from qkvary.data.translations import load_translations
from qkvary.data.word_tokenizer import BEGIN, END, PADDING, UNKNOWN
from qkvary.inference.decoding import generate
from qkvary.nn.encoder_decoder import EncoderDecoder
from qkvary.storage import packages
from qkvary.storage.errors import UsageError
from qkvary.tasks.config import TranslationTaskConfig
from qkvary.tasks.contract import EvaluationContext
from qkvary.tasks.translation import TranslationTask, load
from tests.nn.test_fused_loss import smooth

ENGLISH = ("A dog.", "A big dog runs in the snow.", "Two men run.", "The dog is big and old.")
GERMAN = ("Ein Hund.", "Ein großer Hund läuft im Schnee.", "Zwei Männer.", "Der Hund war alt, ja.")
TEST = (
    ("A cat runs.", "The old men."),
    ("Eine Katze läuft im Hund.", "Der alte Hund war im Schnee."),
)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("corpus")
    for stem, (english, german) in {
        "train": (ENGLISH, GERMAN),
        "val": TEST,
        "test_2016_flickr": TEST,
    }.items():
        for language, lines in (("en", english), ("de", german)):
            path = folder / f"{stem}.{language}.gz"
            path.write_bytes(gzip.compress("\n".join(lines).encode(), mtime=0))
    return folder


def make_task(corpus: Path, **fields: Any) -> TranslationTask:
    given: dict[str, Any] = {
        "source": "en",
        "target": "de",
        "max_tokens": 12,
        "data": str(corpus),
        "data_sha256": load_translations(str(corpus)).fingerprint,
    }
    return load(TranslationTaskConfig(**{**given, **fields}))


def make_model(task: TranslationTask, cross_sharing: str = "none") -> EncoderDecoder:
    layer = AttentionConfig(d_model=12, num_heads=3, variant=parse_variant("Q=K-V"), causal=True)
    network = EncoderDecoderConfig(
        attention=layer,
        block=BlockConfig(d_ff=19),
        num_layers=1,
        vocabulary=task.target_words.vocabulary,
        source_vocabulary=task.source_words.vocabulary,
        max_tokens=12,
        cross_sharing=cross_sharing,
    )
    return task.build(network, 3).eval()


def saying(answers: Sequence[Sequence[int]]) -> EvaluationContext:
    """A run whose decoding gives these answers, whatever the network."""
    left = [tuple(answer) for answer in answers]

    def say(_model: Any, prompts: Sequence[Any], **_: Any) -> list[tuple[int, ...]]:
        assert all(tuple(prompt) == (BEGIN,) for prompt in prompts)
        return [left.pop(0) for _ in prompts]

    return EvaluationContext(generate=say)


def test_words_are_those_of_the_training_split(corpus: Path) -> None:
    task = make_task(corpus)
    assert " cat" not in task.source_words.words
    assert task.source_words.encode(TEST[0][0]) == [
        task.source_words.words.index(" A"),
        UNKNOWN,
        task.source_words.words.index(" runs"),
        task.source_words.words.index("."),
    ]
    assert make_task(corpus, source="de", target="en").source_words.words == task.target_words.words
    assert make_task(corpus, min_count=2).target_words.words[4:] == (".", " Hund", " Ein")


def test_batches_are_padded_to_their_longest_and_shift_the_target(corpus: Path) -> None:
    batch = make_task(corpus).batch(0, 4, 0)
    assert batch.source is not None
    assert batch.source.shape == (4, 2 + 8)
    assert batch.inputs.shape == batch.targets.shape == (4, 1 + 7)
    real = batch.targets != -100
    assert (batch.inputs[:, 0] == BEGIN).all()
    assert torch.equal(batch.inputs[:, 1:][real[:, 1:]], batch.targets[:, :-1][real[:, 1:]])
    assert ((batch.targets == END).sum(1) == 1).all()
    assert batch.counted == real.sum() == sum(map(len, (t.split() for t in GERMAN))) + 4 + 4 + 1
    published = make_task(corpus, protocol="as-published").batch(0, 4, 0)
    assert torch.equal(published.targets == PADDING, ~real)
    assert published.counted == 4 * 8


@pytest.mark.parametrize("protocol", ["clean", "as-published"])
def test_the_loss_is_the_divergence_by_words_or_by_rows(corpus: Path, protocol: str) -> None:
    task = make_task(corpus, protocol=protocol)
    model, batch = make_model(task).double(), task.batch(0, 4, 0)
    targets = batch.targets.flatten()
    is_padding = (targets == PADDING) | (targets == -100)
    rows = smooth(targets.clamp(min=0), 0.1, task.target_words.vocabulary)
    rows = rows.masked_fill(is_padding[:, None], 0.0)
    logprobs = model(batch.inputs, source=batch.source).flatten(0, 1).log_softmax(-1)
    # torch's divergence with batchmean divides by all rows, as the published code does.
    expected = F.kl_div(logprobs, rows, reduction="batchmean")
    if protocol == "clean":
        words = sum(len(task.target_words.encode(sentence)) + 1 for sentence in GERMAN)
        expected = expected * len(rows) / words
    torch.testing.assert_close(task.loss(model, batch), expected, rtol=1e-9, atol=1e-9)
    parts = [task.batch(0, 4, 0, rows) for rows in (slice(0, 1), slice(1, 4))]
    weighted = sum(task.loss(model, part) * part.counted for part in parts)
    torch.testing.assert_close(weighted / batch.counted, expected, rtol=1e-9, atol=1e-9)


def test_both_losses_are_reported_as_published(corpus: Path) -> None:
    scores: dict[str, dict[str, float]] = {}
    for protocol in ("clean", "as-published"):
        task = make_task(corpus, protocol=protocol, evaluation_batch_size=2)
        scores[protocol] = task.evaluate(make_model(task), "test")
    assert scores["as-published"]["token_loss"] == pytest.approx(scores["clean"]["loss"])
    # 6 and 7 words with their ends of 7 rows each.
    diluted = scores["clean"]["loss"] * (7 + 8) / (8 + 8)
    assert scores["as-published"]["loss"] == pytest.approx(diluted)
    assert "token_loss" not in scores["clean"]


def test_an_oracle_has_full_marks_and_trivial_solvers_none(corpus: Path) -> None:
    for protocol, metric in (("clean", "bleu"), ("as-published", "published_bleu")):
        task = make_task(corpus, protocol=protocol)
        assert task.config.metric == metric
        model = make_model(task)
        # Every word of the training split is known.
        task._splits["test"] = task._encode({"en": ENGLISH, "de": GERMAN})
        task.data = replace(
            task.data, splits={**task.data.splits, "test": {"en": ENGLISH, "de": GERMAN}}
        )
        oracle = [task.target_words.encode(sentence) for sentence in GERMAN]
        scores = task.evaluate(model, "test", saying(oracle))
        assert scores["bleu"] == pytest.approx(100.0)
        assert scores["published_bleu"] == 1.0
        silent = task.evaluate(model, "test", saying([()] * 4))
        assert silent["bleu"] == silent["published_bleu"] == 0.0
        stopped = [answer[:1] * 12 for answer in oracle]
        assert task.evaluate(model, "test", saying(stopped))["published_bleu"] == 0.0


def test_a_cache_changes_no_translation(corpus: Path) -> None:
    task = make_task(corpus, evaluation_batch_size=3)
    model = make_model(task).double()
    whole = task.translate(model, "test")
    assert whole == task.translate(model, "test", generate)
    assert {len(answer) for answer in whole} != {0}


def test_the_published_code_is_decoded_as_it_does(corpus: Path) -> None:
    task = make_task(corpus, protocol="as-published")
    model = make_model(task, "published-code")

    def refuse(*_: Any, **__: Any) -> Any:
        raise AssertionError("decoded step by step")

    assert task.translate(model, "test", refuse) == task.translate(model, "test")


def test_what_does_not_fit_is_refused(corpus: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(
        UsageError, match=r"expected sentences of at most 9 tokens in .*, got a sentence"
    ):
        make_task(corpus, max_tokens=9)
    monkeypatch.setattr(packages, "is_installed", lambda name: name != "sacrebleu")
    with pytest.raises(UsageError, match=r"sacrebleu is not installed: run pip install"):
        make_task(corpus)
