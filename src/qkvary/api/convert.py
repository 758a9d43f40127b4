"""Convert a language model: rewrite its matrices exactly, or give it a smaller cache."""

import copy
import os
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

from cyclopts import Parameter

from qkvary.api.arguments import verb
from qkvary.api.options import (
    SILENT,
    Checkpoint,
    CheckpointTokenizer,
    NetworkDtype,
    NetworkOptions,
    Terminal,
    Texts,
    open_checkpoint,
)
from qkvary.api.results import Result, add_data
from qkvary.checkpoints.catalog import check_output
from qkvary.conversions.caches.budget import Budget
from qkvary.conversions.catalog import (
    BY_LAYER,
    load_method,
    load_rewrite,
)
from qkvary.costs.formats import parse_format
from qkvary.storage.durable import check_folder, remove_dir
from qkvary.storage.environment import Stop, stop_in_order
from qkvary.storage.errors import UsageError
from qkvary.text.names import note_windows
from qkvary.text.numbers import Count, Reads, Share, read_count

if TYPE_CHECKING:
    from qkvary.checkpoints.models import LoadedModel
    from qkvary.conversions.caches.stages import Plan, SmallerCache, Stage
    from qkvary.conversions.rewriting import Rewriting
    from qkvary.data.tokenizers import Tokenizer
    from qkvary.reports.report import Report

HEALING = ".healing"
"""Suffix of the folder in which a distillation keeps its checkpoints."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheForm:
    """Options for the form and the size of a smaller cache."""

    to: str | None = None
    """Form of the smaller cache: latent, shared (key and value are one tensor), grouped (fewer KV
    heads), or one of the baselines mean-pooled, key-as-value, least-squares."""
    cache: Share | None = None
    """With --to: size of the new cache as a share of the present one, such as 50%."""
    bytes_per_token: Count | None = None
    """With --to, instead of --cache: size of the new cache in bytes per token over all layers."""
    cache_format: str = "fp16"
    """Number format in which the bytes are counted: fp16, bf16, fp32, int8, int4-g32."""
    layers: Literal["even", "auto"] = "even"
    """Share of the cache that each layer keeps. even: the same share for all layers. auto, only for
    latent and shared: a larger share for layers that the conversion harms more. A network converted
    with auto cannot be exported, because engines need one size for all layers."""
    dry_run: bool = False
    """Forecast the rise of the loss and the time of the conversion; convert nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SmallerCacheOptions(CacheForm):
    """Options for the conversion to a smaller cache: its form, texts and distillation."""

    data: Texts | None = None
    """With --to: text to fit the new cache to, files or folders of .txt and .jsonl."""
    tokens: Count = 32_768
    """Number of tokens to take from --data."""
    context: Annotated[int, Reads(partial(read_count, low=2))] = 256
    """Tokens per window."""
    held_out: Texts | None = None
    """Text to measure the loss on. If not given: every tenth document of --data, or every tenth
    window if --data has fewer than ten documents."""
    held_out_tokens: Count = 8_192
    """Number of tokens to take from the held-out text."""
    tokenizer: CheckpointTokenizer = None
    """The tokenizer to use if the checkpoint has none."""
    heal_tokens: Count | None = None
    """Number of tokens for a distillation after the conversion; no distillation if not given. It
    changes only attention weights. The same command resumes it after a stop."""
    learning_rate: float | None = None
    """Peak learning rate of the distillation. If not given: 5e-4 for 1M tokens and more, less for
    fewer."""
    precision: Literal["full", "bf16"] = "full"
    """Precision of the matrix products in the distillation."""


SMALLER = SmallerCacheOptions()


@verb
def convert(
    model: Checkpoint,
    rewrite: Annotated[str | None, Parameter(name="--rewrite")] = None,
    *,
    smaller: SmallerCacheOptions = SMALLER,
    layer: int | None = None,
    seed: int = 0,
    device: str | None = None,
    dtype: NetworkDtype | None = None,
    out: Path | None = None,
    terminal: Terminal = SILENT,
) -> "Result[Rewriting] | Result[SmallerCache]":
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
        terminal: Shows the progress, and a sentence for each stage.

    Returns:
        A result whose ``value.network`` is the new network.

    Raises:
        ValueError: if the rewrite or method is unknown or its conditions do not hold, or if ``out``
            would replace the checkpoint.
        DamagedError: if the checkpoint is damaged.
        StoppedError: if a distillation was stopped; the same call resumes it.
    """
    if (rewrite is None) == (smaller.to is None):
        given = "neither" if rewrite is None else "both"
        raise UsageError(f"expected --rewrite or --to, got {given}")
    if out is not None:
        if isinstance(model, str | os.PathLike):
            check_output(model, out)
        check_folder(out.absolute().parent)
    network = NetworkOptions(device=device, dtype=dtype)
    if rewrite is None:
        if layer is not None:
            raise UsageError("expected --layer only with --rewrite, got it with --to")
        return _shrink(model, _make_plan(smaller, seed), smaller, network, out, terminal)
    # The verb passes another object as soon as one of the options is given.
    if smaller is not SMALLER:
        raise UsageError(
            "expected the options of a smaller cache (--data, --tokens, ...) only with --to, got "
            "them with --rewrite"
        )
    load_rewrite(rewrite)

    from qkvary.conversions.draft import RewriteOptions
    from qkvary.conversions.rewriting import run_rewrite
    from qkvary.reports.conversion import conversion_report

    options = RewriteOptions(layer=layer, seed=seed)
    loaded, name = open_checkpoint(model, options=network)
    found = run_rewrite(rewrite, loaded.network, options)
    return _save(found, conversion_report(found, name), model, loaded, out)


def _save(
    found: "Rewriting | SmallerCache",
    report: "Report",
    model: Checkpoint,
    loaded: "LoadedModel",
    out: Path | None,
) -> "Result[Any]":
    """Save the new network if ``out`` is given, and return the result."""
    from qkvary.checkpoints.chat_templates import read_chat_template
    from qkvary.checkpoints.models import save_model

    if out is not None:
        save_model(out, found.network, loaded.tokenizer, chat_template=read_chat_template(model))
    return Result(found, add_data(report, out=out), files=() if out is None else (out,))


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
            f"expected --layers auto with a method that can choose sizes by layer, got --to {to}; "
            f"choices: {', '.join(BY_LAYER)}"
        )
    is_healing = smaller.learning_rate is not None or smaller.precision != "full"
    if is_healing and not smaller.heal_tokens:
        raise UsageError("expected --heal-tokens with --learning-rate or --precision, got none")

    from qkvary.conversions.caches.stages import Plan

    return Plan(
        method=to,
        budget=budget,
        by_layer=smaller.layers == "auto",
        heal_tokens=smaller.heal_tokens or 0,
        learning_rate=smaller.learning_rate,
        precision=smaller.precision,
        seed=seed,
    )


def _shrink(
    model: Checkpoint,
    plan: "Plan",
    smaller: SmallerCacheOptions,
    network: NetworkOptions,
    out: Path | None,
    terminal: Terminal,
) -> "Result[SmallerCache]":
    if smaller.data is None:
        raise UsageError("expected a text (--data) for fitting the smaller cache, got none")
    if plan.heal_tokens and out is None and not smaller.dry_run:
        raise UsageError(
            "expected --out with --heal-tokens, because the distillation keeps checkpoints there, "
            "got none"
        )
    import torch

    from qkvary.conversions.caches.calibration import read_texts
    from qkvary.conversions.caches.stages import check_plan, forecast_stages, run_stages
    from qkvary.reports.smaller_cache import describe_stage, smaller_cache_report

    loaded, name = open_checkpoint(model, smaller.tokenizer, network, speaks=True)
    if loaded.network.embedding.dtype in (torch.bfloat16, torch.float16):
        loaded = loaded._replace(network=copy.deepcopy(loaded.network).float())
    check_plan(plan, loaded.network.config)
    most = loaded.network.config.max_tokens
    context = min(smaller.context, most)
    texts = read_texts(
        cast("Tokenizer", loaded.tokenizer),
        smaller.data,
        tokens=smaller.tokens,
        context=context,
        held_out=smaller.held_out or (),
        held_out_tokens=smaller.held_out_tokens,
        trained_tokens=plan.heal_tokens,
    )
    notes = note_windows(smaller.context, context, f"the network was made for {most:,}")
    show_progress = terminal.show_progress
    if smaller.dry_run:
        found = forecast_stages(loaded.network, plan, texts, show_progress=show_progress)
        return Result(found, smaller_cache_report(found, name, notes))
    healing = None if out is None else Path(f"{out}{HEALING}")
    stages: list[Stage] = []

    def on_stage(stage: "Stage") -> None:
        stages.append(stage)
        terminal.say(describe_stage(stage, stages[0]))

    is_command = terminal.command is not None
    heals = plan.heal_tokens > 0
    with stop_in_order(announce=is_command) if heals else nullcontext(Stop()) as stop:
        found = run_stages(
            loaded.network,
            plan,
            texts,
            healing=healing,
            show_progress=show_progress,
            on_stage=on_stage,
            stop=stop,
        )
    result = _save(found, smaller_cache_report(found, name, notes), model, loaded, out)
    if healing is not None and plan.heal_tokens:
        remove_dir(healing)
    return result
