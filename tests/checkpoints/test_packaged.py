"""The packaged models are what their card says, and need neither data nor a home."""

import os
import sys
from pathlib import Path

import pytest
import torch

from qkvary.arch.labels import format_label
from qkvary.checkpoints.catalog import load_checkpoint
from qkvary.data.checkpoint_names import packaged_names
from qkvary.inference.decoding import complete
from qkvary.inference.evaluation.perplexity import Protocol, score_text
from qkvary.inference.evaluation.texts import make_text
from qkvary.inference.requests import Request
from tests import forked

VARIANTS = {"tiny": "QKV@rotary", "tiny-k": "Q-K=V@rotary"}
STORY = (
    "Once upon a time there was a girl named Lily. Lily had a red ball. She played with the ball "
    'in the park. A dog came and took the ball. Lily was sad. Her mom said to the dog, "Please '
    'give it back!" The dog gave the ball back and Lily was happy.'
)


@pytest.mark.parametrize("name", packaged_names())
def test_a_packaged_model_has_learnt_stories(name: str) -> None:
    network, tokenizer = load_checkpoint(name)
    assert {format_label(one.variant) for one in network.config.layers} == {VARIANTS[name]}
    assert {weight.dtype for weight in network.parameters()} == {torch.bfloat16}
    assert tokenizer is not None
    prompt = tuple(tokenizer.encode("Once upon"))
    request = Request(prompt=prompt, max_new_tokens=12, stop_tokens=tokenizer.ends)
    (first,), (again,) = (complete(network, [request], tokenizer=tokenizer) for _ in range(2))
    assert first.text.startswith(" a time")
    assert again == first
    text = make_text(tokenizer, [STORY])
    score = score_text(network, text, Protocol(context=256, stride=256))
    # A byte without a model has 8 bits, an English text packed by gzip about 3.
    assert score.bits_per_byte < 1.5


def test_a_prompt_is_continued_without_data_or_a_home(tmp_path: Path) -> None:
    folders = dict.fromkeys(("HOME", "XDG_CACHE_HOME", "QKVARY_CACHE"), str(tmp_path / "none"))
    environment = {**os.environ, **folders, "QKVARY_DATA": "", "PATH": ""}
    arguments = ["-m", "qkvary", "generate", "tiny-k", "Once upon", "--tokens", "3"]
    command = [sys.executable, *arguments]
    result = forked.run(
        command,
        input="",
        capture_output=True,
        text=True,
        check=False,
        env=environment,
        cwd=tmp_path,
    )
    assert (result.returncode, result.stdout[:16]) == (0, "Once upon a time")
