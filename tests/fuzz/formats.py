"""The kinds of files that a stranger may send: a valid one, and what opens it."""

import hashlib
import json
import lzma
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer as LibraryModel
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

from qkvary.api.cost import cost
from qkvary.arch.families.sizes import published_configs
from qkvary.checkpoints.catalog import load_checkpoint
from qkvary.checkpoints.gguf.export import export_gguf
from qkvary.checkpoints.huggingface.folders import export_folder
from qkvary.checkpoints.models import LoadedModel, save_model
from qkvary.checkpoints.sentencepiece import read_pieces
from qkvary.data.byte_pairs import BytePairTokenizer
from qkvary.data.prepared import fingerprint_of, open_prepared
from qkvary.data.tokenizer_files import load_tokenizer
from qkvary.data.tokenizers import CharacterTokenizer, PieceTokenizer
from qkvary.nn.language_model import LanguageModel
from qkvary.storage.journal import from_line, to_line
from qkvary.storage.jsonvalues import encode
from qkvary.storage.manifest import MANIFEST_NAME, FileEntry, Manifest, read_manifest
from qkvary.storage.untrusted_files import read_file
from qkvary.studies.running import run_archive
from qkvary.studies.running.store import Store
from tests.checkpoints.formats.test_char_gpt import CONFIG as CHARACTERS
from tests.checkpoints.formats.test_char_gpt import write as write_characters
from tests.checkpoints.gguf.test_networks import PORTABLE, build, build_portable, rotary_config
from tests.checkpoints.test_sentencepiece import model as pack_pieces
from tests.contracts.variant_cases import make_language_model_config
from tests.data.merged import TEXT, merges_of
from tests.fuzz.mutations import Change, change_bytes, change_json, change_values
from tests.reference import llama2c
from tests.studies.toy_study import toy_study
from tests.studies.toy_worker import finished
from tests.tasks.tiny_networks import tiny_set

PROMPT = "the cat aaaaaaaaaaaaaaaaaaaaaaaaaaab sat.\n"
PIECES = PieceTokenizer(*llama2c.make_pieces(llama2c.SIZES["vocab_size"]))


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """A kind of file."""

    make: Callable[[Path], Path]
    """Writes a valid one into a folder, and returns the file to change."""
    open: Callable[[Path], object]
    """Reads the file, or what it is a part of."""
    change: Change = change_bytes
    """Returns changed bytes."""
    sign: Callable[[Path], None] = lambda _file: None
    """Makes the digests next to a changed file agree, as an attacker does."""


def _open_model(file: Path) -> None:
    network, tokenizer = load_checkpoint(file.parent)
    with torch.inference_mode():
        network(torch.zeros(1, 3, dtype=torch.int64))
    if isinstance(tokenizer, CharacterTokenizer):
        assert tokenizer.encode(tokenizer.alphabet)
    elif tokenizer is not None:
        spell(tokenizer)


def spell(tokenizer: Any) -> None:
    tokens = tokenizer.encode(PROMPT)
    for before, token in zip([None, *tokens], tokens, strict=False):
        tokenizer.piece(token, after=before)


@cache
def make_network(**changes: Any) -> LanguageModel:
    sizes: dict[str, Any] = {"d_model": 8, "num_heads": 2, "num_layers": 2, "max_tokens": 61}
    return LanguageModel(**{**sizes, **changes}).eval()


def make_library(folder: Path) -> Path:
    """A tokenizer.json with every kind of part."""
    library = LibraryModel(models.BPE())
    steps = [normalizers.NFC(), normalizers.Replace("qu", "kw"), normalizers.Prepend(" ")]
    library.normalizer = normalizers.Sequence(steps)
    split = pre_tokenizers.Split(" ?[a-z]+| ?[0-9]{1,3}|\\s+", "isolated")
    library.pre_tokenizer = pre_tokenizers.Sequence(
        [split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    library.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=280, special_tokens=["<|endoftext|>"], show_progress=False
    )
    library.train_from_iterator([TEXT], trainer)
    (folder / "tokenizer.json").write_text(library.to_str())
    return folder / "tokenizer.json"


def _make_gguf(make_tokenizer: Callable[[], Any], folder: Path) -> Path:
    tokenizer = make_tokenizer()
    network = make_network(vocabulary=tokenizer.vocabulary)
    export_gguf(LoadedModel(network, tokenizer), folder / "a.gguf")
    return folder / "a.gguf"


def _make_stock(to: Any, name: str, folder: Path) -> Path:
    networks: dict[str, Callable[[], LanguageModel]] = {
        "gpt2": lambda: build(make_language_model_config("QKV", positions="learned")),
        "llama": lambda: build(rotary_config("GQA-2", fraction=1.0)),
        "deepseek": lambda: build_portable(PORTABLE[1], tied_head=False),
    }
    export_folder(LoadedModel(networks[to](), None), folder / "model", to=to)
    (folder / "model" / MANIFEST_NAME).unlink()
    return folder / "model" / name


def _make_own(name: str, folder: Path) -> Path:
    tokenizer = CharacterTokenizer("".join(sorted(set(PROMPT))))
    network = make_network(vocabulary=tokenizer.vocabulary)
    save_model(folder / "model", network, tokenizer)
    return folder / "model" / name


def _sign_folder(file: Path) -> None:
    """Let the manifest agree with a changed file, and with its own digest."""
    folder = file.parent
    path = folder / MANIFEST_NAME
    if file != path:
        manifest = read_manifest(folder)
        files = {**manifest.files, file.name: FileEntry.of(file.read_bytes())}
        path.write_bytes(Manifest(files=files, about=manifest.about).to_json())
        return
    try:
        fields = json.loads(path.read_bytes())
        fields.pop("digest", None)
        digest = hashlib.sha256(encode(fields).encode()).hexdigest()
        path.write_bytes((encode({**fields, "digest": digest}, indent=1) + "\n").encode())
    except (ValueError, AttributeError, TypeError, RecursionError):
        # No document any more: it stays as it is.
        return


def _sign_set(file: Path) -> None:
    try:
        fields = json.loads(file.read_bytes())
        entries = {name: FileEntry(**one) for name, one in fields["files"].items()}
        manifest = Manifest(files=entries, about=fields["about"])
        fields["about"]["fingerprint"] = fingerprint_of(manifest, fields["about"])
        file.write_text(json.dumps(fields))
    except (ValueError, AttributeError, TypeError, KeyError, RecursionError):
        pass
    _sign_folder(file)


def _make_set(folder: Path) -> Path:
    shutil.copytree(tiny_set().path, folder / "set")
    return folder / "set" / MANIFEST_NAME


def _make_llama2c(kind: str, folder: Path) -> Path:
    llama2c.write_stand_in(folder / "model")
    (file,) = (folder / "model").glob(f"{kind}*.bin")
    return file


def _make_runs(folder: Path) -> Path:
    store = Store(folder / "store")
    cell = toy_study([5]).cells()[0]
    claim = store.claim(cell.run.identity())
    assert claim is not None
    made = finished(cell, "0123456789abcdef" * 4)
    claim.finish(replace(made, samples=b"samples"))
    run_archive.pack_runs(store, [cell.run_key], folder / "runs.jsonl.xz", shown=[cell.run_key])
    return folder / "runs.jsonl.xz"


def _change_runs(data: bytes, draw: Any) -> bytes:
    if draw.random() < 0.3:
        return change_bytes(data, draw)
    lines = [from_line(line) for line in lzma.decompress(data).splitlines()]
    number = draw.randrange(len(lines))
    name = draw.choice([None, "config.json", "record.json"])
    if name in lines[number] and isinstance(lines[number][name], str):
        inner = change_json(lines[number][name].encode(), draw)
        lines[number][name] = inner.decode("utf-8", "replace")
    else:
        lines[number] = change_values(lines[number], draw)
    packed = [to_line(one) if isinstance(one, dict) and one else b"{}\n" for one in lines]
    return lzma.compress(b"".join(packed), preset=0)


def _open_runs(file: Path) -> None:
    shutil.rmtree(file.parent / "other", ignore_errors=True)
    run_archive.unpack_runs(file, Store(file.parent / "other"))


def _write(name: str, content: Callable[[], bytes], folder: Path) -> Path:
    (folder / name).write_bytes(content())
    return folder / name


def _change_config(_data: bytes, draw: Any) -> bytes:
    configs = published_configs()
    name = draw.choice(sorted(configs))
    return change_json(json.dumps(configs[name].config).encode(), draw)


FORMATS: Mapping[str, Format] = {
    "tokenizer.json": Format(
        make=make_library,
        open=lambda file: spell(load_tokenizer(str(file))),
        change=change_json,
    ),
    "sentencepiece": Format(
        make=partial(_write, "tokenizer.model", pack_pieces),
        open=lambda file: spell(read_pieces(read_file(file), str(file))),
    ),
    "gguf pieces": Format(make=partial(_make_gguf, lambda: PIECES), open=_open_model),
    "gguf pairs": Format(
        make=partial(_make_gguf, lambda: BytePairTokenizer(merges_of("stand-in"))), open=_open_model
    ),
    "safetensors": Format(
        make=partial(_make_stock, "llama", "model.safetensors"), open=_open_model
    ),
    **{
        f"{to} config": Format(
            make=partial(_make_stock, to, "config.json"), open=_open_model, change=change_json
        )
        for to in ("llama", "gpt2", "deepseek")
    },
    "character config": Format(
        make=lambda folder: write_characters(folder, CHARACTERS) / "config.json",
        open=_open_model,
        change=change_json,
    ),
    "published config": Format(
        make=partial(_write, "config.json", lambda: b"{}"),
        open=lambda file: cost(str(file)),
        change=_change_config,
    ),
    **{
        f"own {Path(name).stem.lower()}": Format(
            make=partial(_make_own, name), open=_open_model, change=change_json, sign=_sign_folder
        )
        for name in (MANIFEST_NAME, "config.json", "tokenizer.json")
    },
    "llama2.c": Format(make=partial(_make_llama2c, "model"), open=_open_model),
    "llama2.c tokenizer": Format(make=partial(_make_llama2c, "tok"), open=_open_model),
    "prepared data": Format(
        make=_make_set,
        open=lambda file: open_prepared(file.parent),
        change=change_json,
        sign=_sign_set,
    ),
    "packed runs": Format(make=_make_runs, open=_open_runs, change=_change_runs),
}
