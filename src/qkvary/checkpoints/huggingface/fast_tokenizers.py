"""Converts tokenizers of qkvary for the ``tokenizers`` library, which transformers uses.

Tokens are the same for every text, with three exceptions, reported as notes: the name of a special
token inside a text becomes that token; runs of a piece that overlaps with itself may be split
differently; and a text that qkvary rejects may be rejected later or with another message.
"""

from typing import NamedTuple

from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors
from tokenizers import Tokenizer as LibraryModel

from qkvary.data.byte_pairs import BytePairTokenizer, byte_letters
from qkvary.data.library_tokenizers import LibraryTokenizer
from qkvary.data.tokenizers import (
    CONTROL_TOKENS,
    DOCUMENT_END,
    ByteTokenizer,
    CharacterTokenizer,
    PieceTokenizer,
    Tokenizer,
)
from qkvary.storage.errors import UsageError

_UNKNOWN, _BEGIN, _END = "<unk>", "<s>", "</s>"


class FastTokenizer(NamedTuple):
    """A tokenizer for transformers."""

    library: LibraryModel
    beginning: str | None
    end: str | None
    notes: tuple[str, ...]


def convert_tokenizer(tokenizer: Tokenizer) -> FastTokenizer:
    """Convert a tokenizer for transformers."""
    match tokenizer:
        case CharacterTokenizer():
            return _convert_characters(tokenizer)
        case ByteTokenizer():
            return _convert_bytes(tokenizer)
        case BytePairTokenizer():
            return _convert_byte_pairs(tokenizer)
        case PieceTokenizer():
            return _convert_pieces(tokenizer)
        case LibraryTokenizer():
            content = tokenizer.describe()
            library = LibraryModel.from_str(content["content"])
            return FastTokenizer(library, None, content["separator"], ())
        case _:
            raise UsageError(f"expected a qkvary tokenizer, got {type(tokenizer).__name__}")


def _convert_characters(tokenizer: CharacterTokenizer) -> FastTokenizer:
    numbers = {letter: number for number, letter in enumerate(tokenizer.alphabet)}
    library = LibraryModel(models.WordLevel(numbers))
    library.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    library.decoder = decoders.Fuse()
    return _add_end(library, tokenizer)


def _convert_bytes(tokenizer: ByteTokenizer) -> FastTokenizer:
    library = LibraryModel(models.BPE(vocab=byte_letters(), merges=[]))
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    library.decoder = decoders.ByteLevel()
    return _add_end(library, tokenizer)


def _convert_byte_pairs(tokenizer: BytePairTokenizer) -> FastTokenizer:
    lines: str = tokenizer.describe()["merges"]
    pairs = (line.rstrip("\r").partition(" ") for line in lines.split("\n") if line)
    merges = [(first, second) for first, _, second in pairs]
    numbers = tokenizer.numbers()
    del numbers[DOCUMENT_END]
    library = LibraryModel(models.BPE(vocab=numbers, merges=merges))
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = decoders.ByteLevel()
    return _add_end(library, tokenizer)


def _add_end(library: LibraryModel, tokenizer: Tokenizer) -> FastTokenizer:
    if tokenizer.separator is None:
        return FastTokenizer(library, None, None, ())
    library.add_special_tokens([AddedToken(DOCUMENT_END, special=True, normalized=False)])
    return FastTokenizer(library, None, DOCUMENT_END, (_special_note(DOCUMENT_END),))


def _convert_pieces(tokenizer: PieceTokenizer) -> FastTokenizer:
    numbers, has_bytes = _number_pieces(tokenizer), b"<0x00>" in tokenizer.pieces
    found: dict[bytes, int] = {}
    for token, piece in enumerate(tokenizer.pieces[CONTROL_TOKENS:], start=CONTROL_TOKENS):
        if not (len(piece) == 6 and piece.startswith(b"<0x")):
            found.setdefault(piece, token)
    # All merges of two pieces to a third, the highest score first.
    merges = [
        (-tokenizer.scores[token], token, len(first), first, second)
        for piece, token in found.items()
        for first, second in ((piece[:cut], piece[cut:]) for cut in range(1, len(piece)))
        if first in found and second in found
    ]
    library = LibraryModel(
        models.BPE(
            vocab=numbers,
            merges=[(first.decode(), second.decode()) for *_, first, second in sorted(merges)],
            unk_token=_UNKNOWN,
            # Without byte pieces, a run of characters that have no piece is one unknown token.
            fuse_unk=not has_bytes,
            byte_fallback=has_bytes,
        )
    )
    steps: list[normalizers.Normalizer] = []
    if tokenizer.joins_spaces:
        steps = [
            normalizers.Replace(Regex(" +"), " "),
            # Not ^ and $, which match at every line here.
            normalizers.Replace(Regex(r"\A | \z"), ""),
        ]
    if tokenizer.adds_space:
        steps.append(normalizers.Prepend(" "))
    if steps:
        library.normalizer = normalizers.Sequence(steps) if len(steps) > 1 else steps[0]
    strip = [decoders.Strip(" ", 1, 0)] if tokenizer.adds_space else []
    library.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse(), *strip])
    names = [_UNKNOWN, _BEGIN, _END]
    library.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in names])
    if tokenizer.beginning is not None:
        library.post_processor = processors.TemplateProcessing(
            single=f"{_BEGIN} $A",
            pair=f"{_BEGIN} $A {_BEGIN} $B",
            special_tokens=[(_BEGIN, tokenizer.beginning)],
        )
    notes = (
        _special_note(*names),
        (
            "transformers may split a text differently where a piece overlaps with itself, such as "
            "aa in aaa"
        ),
    )
    beginning = None if tokenizer.beginning is None else _BEGIN
    return FastTokenizer(library, beginning, _END, notes)


def _number_pieces(tokenizer: PieceTokenizer) -> dict[str, int]:
    names = {_UNKNOWN: 0, _BEGIN: 1, _END: 2}
    for token, piece in enumerate(tokenizer.pieces[CONTROL_TOKENS:], start=CONTROL_TOKENS):
        try:
            # If pieces are equal, only the first is used; the others get placeholder names.
            name = piece.decode("utf-8")
        except UnicodeDecodeError:
            raise UsageError(
                f"expected pieces that are valid UTF-8, got {piece!r} as token {token}"
            ) from None
        names.setdefault(name if name not in names else f"<{token}>", token)
    return names


def _special_note(*names: str) -> str:
    return (
        f"transformers recognises special tokens inside a text ({', '.join(names)}); qkvary reads "
        "them as plain text"
    )
