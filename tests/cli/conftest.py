"""Checkpoints and texts that commands are typed about."""

from pathlib import Path

import pytest

from qkvary.checkpoints.models import save_model
from qkvary.data.tokenizers import ByteTokenizer, CharacterTokenizer
from qkvary.nn.language_model import LanguageModel
from tests.contracts.variant_cases import make_language_model_config, randomize
from tests.inference.evaluation.networks import byte_network
from tests.inference.evaluation.task_files import write_task_files
from tests.reference import char_gpt, llama2c

CHARACTERS = CharacterTokenizer("abcdefgh .\n\té")


@pytest.fixture(scope="session")
def places(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with networks of every kind and texts, which tests only read."""
    folder = tmp_path_factory.mktemp("places")
    llama2c.write_stand_in(folder / "rotary")
    char_gpt.write_stand_in(folder / "learned")
    for name, tokenizer in (("bytes", ByteTokenizer()), ("bare", None)):
        save_model(folder / name, byte_network("Q-K=V", max_tokens=160), tokenizer)
    for name, label in (("own", "Q-K=V"), ("narrow", "Q-K=V@w4"), ("mute", "Q-K=V")):
        model = LanguageModel(make_language_model_config(label, positions="learned"))
        randomize(model, seed=7)
        save_model(folder / name, model, None if name == "mute" else CHARACTERS)
    write_task_files(folder / "tasks")
    (folder / "text").write_text("abc abc. " * 20, "utf-8")
    (folder / "sand").write_text("the sand and the rest " * 20, "utf-8")
    (folder / "cats").write_text("the cat sat on the mat. " * 20, "utf-8")
    return folder
