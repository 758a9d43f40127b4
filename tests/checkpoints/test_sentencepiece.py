"""The flag for spaces in a SentencePiece model is found; invalid files are rejected."""

import json
import struct
from collections.abc import Sequence
from pathlib import Path

import pytest

from qkvary.checkpoints.huggingface.fast_tokenizers import convert_tokenizer
from qkvary.checkpoints.sentencepiece import read_pieces
from qkvary.data.tokenizers import make_tokenizer
from qkvary.inference.streaming import detokenize
from qkvary.storage.errors import DamagedError, UsageError


def field(number: int, kind: int, body: bytes) -> bytes:
    size = bytes((len(body),)) if kind == 2 else b""
    return bytes((number << 3 | kind,)) + size + body


PIECE = field(1, 2, field(1, 2, b"a") + field(2, 5, b"\0\0\0\0"))
NAME = field(1, 2, b"identity")


@pytest.mark.parametrize(
    ("normalizer", "expected"),
    [
        (NAME + field(3, 0, b"\1") + field(4, 0, b"\0"), False),
        (NAME + field(4, 0, b"\1"), True),
        (NAME + field(4, 0, b"\x80\x01"), True),
        (NAME, True),
    ],
)
def test_the_flag_is_found_or_the_default_holds(normalizer: bytes, expected: bool) -> None:
    eight = field(9, 1, b"12345678")
    assert read_pieces(model(field(3, 2, normalizer), eight), "m").joins_spaces is expected


@pytest.mark.parametrize(
    "data",
    [b"\xff", b"\x80" * 11, field(1, 2, b"abc")[:-1], field(1, 3, b""), field(1, 5, b"ab")],
)
def test_invalid_messages_are_rejected(data: bytes) -> None:
    with pytest.raises(DamagedError, match="m is not a SentencePiece model"):
        read_pieces(data, "m")


def pack_model(pieces: Sequence[bytes], scores: Sequence[float], *more: bytes) -> bytes:
    """A model file of BPE; a later field of a message overrides an earlier one."""
    names = [b"<unk>", b"<s>", b"</s>", *pieces[3:]]
    packed = [
        field(1, 2, name.replace(b" ", "▁".encode())) + field(2, 5, struct.pack("<f", score))
        for name, score in zip(names, scores, strict=True)
    ]
    parts = [field(1, 2, one) for one in packed]
    return b"".join([*parts, field(2, 2, field(3, 0, b"\2")), *more])


def model(*more: bytes) -> bytes:
    """A model of the 256 bytes and three letters."""
    names = [b"", b"", b"", *(b"<0x%02X>" % byte for byte in range(256)), b" ", b"a", b" a"]
    return pack_model(names, [-float(score) for score in range(len(names))], *more)


def test_the_pieces_of_a_model_are_its_tokens() -> None:
    tokenizer = read_pieces(model(field(3, 2, field(4, 0, b"\0"))), "m")
    assert tokenizer.encode("a  a\n") == [1, 261, 259, 261, 3 + 10]
    assert read_pieces(model(), "m").encode("a  a") == [1, 261, 261]
    assert tokenizer.scores[261] == -261.0


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (model(field(2, 2, field(3, 0, b"\1"))), "a model type other than BPE"),
        (
            model(field(2, 2, field(3, 0, b"\4"))),
            "a character model with pieces of several characters",
        ),
        (model(field(3, 2, field(2, 2, b"map"))), "a map of characters"),
        (model(field(1, 2, field(1, 2, b"x") + field(3, 0, b"\4"))), "user-defined pieces"),
        (PIECE + model(), "other first pieces than <unk>, <s>, </s>"),
    ],
)
def test_other_models_are_refused(data: bytes, message: str) -> None:
    with pytest.raises(UsageError, match=f"m has {message}"):
        read_pieces(data, "m")


MADE = json.loads(Path(__file__).with_name("sentencepiece_models.json").read_text("utf-8"))[
    "models"
]


@pytest.mark.parametrize("name", MADE)
def test_tokens_are_those_of_the_library(name: str, tmp_path: Path) -> None:
    """Models of characters, without bytes, and without a space before a text."""
    made = MADE[name]
    (tmp_path / "tokenizer.model").write_bytes(bytes.fromhex(made["model"]))
    tokenizer = read_pieces((tmp_path / "tokenizer.model").read_bytes(), "m")
    again = make_tokenizer(json.loads(json.dumps(tokenizer.describe())))
    for text, tokens, decoded in zip(made["texts"], made["tokens"], made["decoded"], strict=True):
        assert tokenizer.encode(text) == [1, *tokens]
        assert again.encode(text) == [1, *tokens]
        if 0 not in tokens:
            assert detokenize(tokenizer, tokens, after=1) == decoded
            assert detokenize(again, tokens, after=1) == decoded
    fast = convert_tokenizer(tokenizer).library
    for text, tokens in zip(made["texts"], made["tokens"], strict=True):
        if text.strip(" "):
            assert fast.encode(text).ids == [1, *tokens]
