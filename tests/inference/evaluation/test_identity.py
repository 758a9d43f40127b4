"""Every component of an evaluated network changes its identity."""

import dataclasses

import torch

from qkvary.data.tokenizers import ByteTokenizer, CharacterTokenizer
from qkvary.inference.evaluation.identity import Identity, identify
from qkvary.nn.language_model import LanguageModel
from tests.contracts.variant_cases import make_language_model_config


def make(**changes: object) -> LanguageModel:
    config = dataclasses.replace(make_language_model_config("Q-K=V"), **changes)  # type: ignore[arg-type]
    return LanguageModel(config, seed=5)


def test_every_component_changes_the_identity() -> None:
    plain = identify(make(), ByteTokenizer())
    assert plain == identify(make(), ByteTokenizer())
    nudged = make()
    with torch.no_grad():
        nudged.embedding[3, 4] += 1e-6
    others: list[Identity] = [
        identify(nudged, ByteTokenizer()),
        identify(make().double(), ByteTokenizer()),
        identify(make().bfloat16(), ByteTokenizer()),
        identify(make(max_tokens=18), ByteTokenizer()),
        identify(make(), ByteTokenizer(has_separator=True)),
        identify(make(), CharacterTokenizer("ab")),
        identify(make(), None),
    ]
    assert len({plain, *others}) == 1 + len(others)
    assert others[2].dtype == "bfloat16"
    assert others[0].tokenizer_sha256 == plain.tokenizer_sha256
    assert others[-1].tokenizer_sha256 is None
