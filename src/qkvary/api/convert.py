"""Convert a language model: rewrite its matrices exactly, or give it a smaller cache."""

import copy
import os
import threading
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast, overload

from cyclopts import Parameter

from qkvary.api.arguments import options, verb
from qkvary.api.options import (
    Checkpoint,
    CheckpointTokenizer,
    NetworkDtype,
    NetworkOptions,
    Texts,
    open_checkpoint,
    say_nothing,
)
from qkvary.api.results import Result, add_data
from qkvary.checkpoints.catalog import check_output
from qkvary.conversions.caches.budget import Budget
from qkvary.conversions.catalog import (
    BY_LAYER,
    load_method,
    load_rewrite,
    method_names,
    rewrite_names,
)
from qkvary.costs.formats import parse_format
from qkvary.storage.durable import check_folder, remove_dir
from qkvary.storage.environment import announce_stop, stop_in_order
from qkvary.storage.errors import StoppedError, UsageError
from qkvary.storage.untrusted_files import StrPath
from qkvary.text.numbers import Count, Reads, Share, read_count
from qkvary.text.progress_line import ShowProgress, no_progress

if TYPE_CHECKING:
    from qkvary.checkpoints.models import LoadedModel
    from qkvary.conversions.caches.stages import Plan, SmallerCache, Stage
    from qkvary.conversions.rewriting import Rewriting
    from qkvary.data.tokenizers import Tokenizer

HEALING = ".healing"
"""Suffix of the folder in which a distillation keeps its checkpoints."""


@options
class CacheForm:
    """Options for the form and the size of a smaller cache."""

    to: Annotated[str | None, Parameter(completer=lambda _: method_names())] = None
    """Form of the smaller cache: latent, shared (key and value are one tensor), grouped (fewer KV
    heads), or one of the baselines mean-pooled, key-as-value, least-squares."""
    cache: Share | None = None
    """With --to: size of the new cache as a share of the present one, such as 50%."""
    bytes_per_token: Count | None = None
    """With --to: size of the new cache in bytes per token over all layers, instead of --cache."""
    cache_format: str = "fp16"
    """Number format in which the bytes are counted: fp16, bf16, fp32, int8, int4-g32."""
    layers: Literal["even", "auto"] = "even"
    """even: every layer keeps the same share. auto, for latent and shared: layers that the
    conversion harms more keep a larger share. Such a network cannot be exported, because engines
    need one size for all layers."""
    dry_run: bool = False
    """Forecast how much the loss rises and how long it takes; convert nothing."""


@options
class SmallerCacheOptions(CacheForm):
    """Options for the conversion to a smaller cache: its form, texts and distillation."""

    data: Texts | None = None
    """With --to: text to fit the new cache to, files or folders of .txt and .jsonl."""
    tokens: Count = 32_768
    """Number of tokens to take from --data."""
    context: Annotated[int, Reads(partial(read_count, low=2))] = 256
    """Tokens per window."""
    held_out: Texts | None = None
    """Text to measure the loss on; every tenth window of --data if not given."""
    held_out_tokens: Count = 8_192
    """Number of tokens to take from the held-out text."""
    tokenizer: CheckpointTokenizer = None
    """The tokenizer to use if the checkpoint has none."""
    heal_tokens: Count | None = None
    """Number of tokens to train on after the conversion, by a distillation that changes only
    attention weights; none if not given. A stopped distillation resumes."""
    learning_rate: float | None = None
    """Peak learning rate of the distillation. If not given: 5e-4 for 1M tokens and more, less for
    fewer."""
    precision: Literal["full", "bf16"] = "full"
    """Precision of the matrix products in the distillation."""


SMALLER = SmallerCacheOptions()


@overload
def convert(model: Checkpoint, rewrite: str, **options: Any) -> "Result[Rewriting]": ...
@overload
def convert(
    model: Checkpoint, rewrite: None = None, *, to: str, **options: Any
) -> "Result[SmallerCache]": ...
@verb
def convert(
    model: Checkpoint,
    rewrite: Annotated[
        str | None, Parameter(name="--rewrite", completer=lambda _: rewrite_names())
    ] = None,
    *,
    smaller: SmallerCacheOptions = SMALLER,
    layer: int | None = None,
    seed: int = 0,
    device: str | None = None,
    dtype: NetworkDtype | None = None,
    out: Path | None = None,
    show_progress: ShowProgress = no_progress,
    say: Callable[[str], None] = say_nothing,
) -> "Result[Any]":
    """Convert a language model: rewrite its matrices exactly, or give it a smaller cache.

    A rewrite keeps the network's outputs: its conditions are checked, and the differences of the
    logits are measured, before anything is written. A smaller cache changes the outputs: the loss
    on a held-out text is measured after every stage.

    Args:
        model: The checkpoint, or what ``qk.load`` returned.
        rewrite: An exact rewrite, such as gauge or identity-query. If the name is
            unknown, the error lists all rewrites.
        smaller: The form and size of the smaller cache, the texts that the network is fitted to,
            and the distillation after the conversion.
        layer: With --rewrite: change only this layer, counted from 1.
        seed: Seed of random choices.
        device: Device: cpu, cuda, cuda:1, mps. If not given, a checkpoint is loaded on the CPU.
        dtype: Number format of the weights. If not given: as stored; with --to, float32 instead of
            half precision.
        out: Folder to write; it must not be the checkpoint's folder. If not given, only
            measurements are printed.
        show_progress: Opens a progress display.
        say: Called with a sentence for each stage.

    Returns:
        A result whose ``value.network`` is the new network.

    Raises:
        ValueError: for a rewrite or method that is unknown or whose conditions do not hold, or if
            ``out`` would replace the checkpoint.
        DamagedError: if the checkpoint is damaged.
        StoppedError: if a distillation was stopped; the same call resumes it.
    """
    if (rewrite is None) == (smaller.to is None):
        given = "neither" if rewrite is None else "both"
        raise UsageError(f"expected --rewrite or --to, got {given}")
    path = model if isinstance(model, str | os.PathLike) else None
    network = NetworkOptions(device=device, dtype=dtype)
    if out is not None:
        if path is not None:
            check_output(path, out)
        check_folder(out.absolute().parent)
    if rewrite is not None:
        # The verb passes another object as soon as one of the options is given.
        if smaller is not SMALLER:
            raise UsageError(
                "expected the options of a smaller cache (--data, --tokens, ...) only with --to, "
                "got --rewrite"
            )
        return _rewrite(model, path, rewrite, layer, seed, network, out)
    if layer is not None:
        raise UsageError("expected --layer only with --rewrite, got --to")
    plan = _make_plan(smaller, seed)
    opening = partial(open_checkpoint, model, smaller.tokenizer, network)
    return _shrink(opening, path, plan, smaller, out, show_progress, say)


def _rewrite(
    model: Checkpoint,
    path: StrPath | None,
    name: str,
    layer: int | None,
    seed: int,
    network: NetworkOptions,
    out: Path | None,
) -> "Result[Rewriting]":
    load_rewrite(name)

    from qkvary.checkpoints.chat_templates import read_chat_template
    from qkvary.checkpoints.models import save_model
    from qkvary.conversions.draft import RewriteOptions
    from qkvary.conversions.rewriting import run_rewrite
    from qkvary.reports.conversion import conversion_report

    chosen = RewriteOptions(layer=layer, seed=seed)
    loaded, shown = open_checkpoint(model, options=network)
    made = run_rewrite(name, loaded.network, chosen)
    report = conversion_report(made, shown)
    written = () if out is None else (out,)
    if out is not None:
        save_model(out, made.network, loaded.tokenizer, chat_template=read_chat_template(path))
    return Result(made, add_data(report, out=out), files=written)


def _make_plan(smaller: SmallerCacheOptions, seed: int) -> "Plan":
    to = smaller.to or ""
    load_method(to)
    budget = Budget(
        share=smaller.cache,
        bytes_per_token=smaller.bytes_per_token,
        stored_as=parse_format(smaller.cache_format),
    )
    if smaller.layers == "auto" and to not in BY_LAYER:
        raise UsageError(
            f"expected --layers auto with a method that knows what each size costs, got --to {to}; "
            f"choices: {', '.join(BY_LAYER)}"
        )
    heal_tokens = smaller.heal_tokens or 0
    is_healing = smaller.learning_rate is not None or smaller.precision != "full"
    if is_healing and not heal_tokens:
        raise UsageError("expected --heal-tokens with --learning-rate or --precision, got none")

    from qkvary.conversions.caches.stages import Plan

    return Plan(
        method=to,
        budget=budget,
        by_layer=smaller.layers == "auto",
        heal_tokens=heal_tokens,
        learning_rate=smaller.learning_rate,
        precision=smaller.precision,
        seed=seed,
    )


def _shrink(
    opening: "Callable[..., tuple[LoadedModel, str]]",
    path: StrPath | None,
    plan: "Plan",
    smaller: SmallerCacheOptions,
    out: Path | None,
    show_progress: ShowProgress,
    say: Callable[[str], None],
) -> "Result[SmallerCache]":
    if smaller.data is None:
        raise UsageError("expected a text (--data) for fitting the smaller cache, got none")
    if plan.heal_tokens and out is None and not smaller.dry_run:
        raise UsageError(
            "expected --out with --heal-tokens, for the distillation's checkpoints, got none"
        )
    from qkvary.checkpoints.chat_templates import read_chat_template
    from qkvary.checkpoints.models import save_model
    from qkvary.conversions.caches.calibration import read_texts
    from qkvary.conversions.caches.stages import check_plan, forecast_stages, run_stages
    from qkvary.reports.smaller_cache import describe_stage, smaller_cache_report

    loaded, name = opening(speaks=True)
    loaded = _in_float32(loaded)
    check_plan(plan, loaded.network.config)
    texts = read_texts(
        cast("Tokenizer", loaded.tokenizer),
        smaller.data,
        tokens=smaller.tokens,
        context=min(smaller.context, loaded.network.config.max_tokens),
        held_out=smaller.held_out or (),
        held_out_tokens=smaller.held_out_tokens,
        trained_tokens=plan.heal_tokens,
    )
    if smaller.dry_run:
        found = forecast_stages(loaded.network, plan, texts, show_progress=show_progress)
        return Result(found, smaller_cache_report(found, name))
    folder = None if out is None else Path(f"{out}{HEALING}")
    first: list[Stage] = []

    def tell(stage: "Stage") -> None:
        first.append(stage)
        say(describe_stage(stage, first[0]))

    stopping = threading.Event()

    def stop(_number: int) -> None:
        stopping.set()
        if say is not say_nothing:
            announce_stop()

    def end(number: int) -> None:
        # The checkpoints stay, so that the same call can resume.
        raise StoppedError(number)

    with stop_in_order(stop, end) if plan.heal_tokens else nullcontext():
        found = run_stages(
            loaded.network,
            plan,
            texts,
            healing=folder,
            show_progress=show_progress,
            on_stage=tell,
            stop=stopping.is_set,
        )
    written = () if out is None else (out,)
    if out is not None:
        save_model(out, found.network, loaded.tokenizer, chat_template=read_chat_template(path))
        if folder is not None and plan.heal_tokens:
            remove_dir(folder)
    return Result(found, add_data(smaller_cache_report(found, name), out=out), files=written)


def _in_float32(loaded: "LoadedModel") -> "LoadedModel":
    """Return a float32 copy of a half-precision network, or the network itself, unchanged."""
    import torch

    from qkvary.checkpoints.models import LoadedModel

    if loaded.network.embedding.dtype not in (torch.bfloat16, torch.float16):
        return loaded
    return LoadedModel(copy.deepcopy(loaded.network).float(), loaded.tokenizer)
