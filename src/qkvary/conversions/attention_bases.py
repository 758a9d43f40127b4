"""Rewrites an attention layer in other bases of its input and output.

A change of basis can turn one projection into the identity, so that the query, key or value is the
layer input itself. Only the residual stream is written in another basis: queries, keys and values
keep their numbers, so score terms, cores and masks do not change.

Source: Karbevski and Mijoski, "[Key,Value] is probably all you need", Lemmas 3.1, 8.4 and 8.5.
"""

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from qkvary.arch.attention import AttentionConfig
from qkvary.arch.labels import format_label
from qkvary.arch.sharing import IDENTITY, QUERY_ROPE, ROLES, Role, Source, share
from qkvary.storage.errors import UsageError

Basis = Float[Tensor, "d_model d_model"] | None
"""The matrix that changes the basis of row vectors; ``None`` stands for the identity."""

_BETWEEN = ("kv_norm", "qk-norm", "qk-norm-wide", "latent")
"""Terms of a variant that change a projection's output before it becomes a query, key or value."""
_NEW = "new"
"""The name of a new projection for a role that was the layer input; it undoes the change of
basis."""


@dataclass(slots=True)
class LayerDraft:
    """The configuration and the weights of an attention layer, for a rewrite."""

    config: AttentionConfig
    weights: dict[str, Tensor]
    """The parameters in float64, under the names of the layer's state dict."""
    name: str

    def reading(self, source: Source) -> str:
        """Return the name of the matrix by which a projection multiplies the layer input."""
        inner = f"{source}_proj.down"
        return inner if inner in self.weights else f"{source}_proj.weight"


def undo(basis: Basis, matrix: Tensor) -> Tensor:
    """Return ``basis^-1 W``. Both ``matrix`` and the result are transposed, as in torch."""
    return matrix if basis is None else torch.linalg.solve(basis, matrix.mT).mT.contiguous()


def apply(matrix: Tensor, basis: Basis) -> Tensor:
    """Return ``W basis``. Both ``matrix`` and the result are transposed, as in torch."""
    return matrix if basis is None else basis.mT @ matrix


def make_plain(layer: LayerDraft) -> LayerDraft:
    """Return a layer whose query is one matrix: ``x + x W`` becomes ``x (1 + W)``.

    A query with a GELU is refused.
    """
    config = layer.config
    if config.variant.query_form == "residual-gelu":
        raise UsageError(
            "expected a query that is linear in the layer input, got "
            f"{format_label(config.variant)} in {layer.name}"
        )
    if config.variant.query_form != "residual":
        return layer
    weights = dict(layer.weights)
    change = weights["q_proj.weight"]
    weights["q_proj.weight"] = change + torch.eye(len(change), dtype=change.dtype)
    plain = replace_variant(config, query_form="plain")
    factor = config.identity_correction / plain.identity_correction
    scale_sources(weights, ("q", QUERY_ROPE), factor)
    return LayerDraft(plain, weights, layer.name)


def scale_sources(weights: dict[str, Tensor], sources: Sequence[Source], factor: float) -> None:
    """Multiply the weights and biases of projections by a factor; skip those that are absent."""
    for source in sources:
        for name in (f"{source}_proj.weight", f"{source}_proj.bias"):
            if name in weights and factor != 1.0:
                weights[name] = weights[name] * factor


def check_terms(layer: LayerDraft) -> None:
    """Refuse a layer with a norm or a latent between a projection and its key or value."""
    for term in layer.config.variant.terms:
        if term.name in _BETWEEN:
            raise UsageError(
                f"expected keys and values that are projections in {layer.name}, got "
                f"{format_label(layer.config.variant)}: "
                f"{term.write(term.words, layer.config.variant)}"
            )


def find_basis(layer: LayerDraft, role: Role) -> Float[Tensor, "d_model d_model"]:
    """Return the matrix of a role's projection; in this basis, the role is the layer input.

    If the layer corrects the score scale for identity roles, the matrix includes the correction.
    """
    config, sharing = layer.config, layer.config.variant.sharing
    source = sharing.roles[role]
    label = format_label(config.variant)
    if source == IDENTITY:
        raise UsageError(
            f"expected a learned {role} in {layer.name}, got {label}, whose {role} is the layer "
            "input already"
        )
    matrix = layer.weights[f"{source}_proj.weight"]
    if config.variant.query_form == "map" and source == sharing.query:
        raise UsageError(f"expected a {role} without a map per head in {layer.name}, got {label}")
    if layer.reading(source).endswith("down") or matrix.shape[0] != matrix.shape[1]:
        raise UsageError(
            f"expected a square {role} matrix of full rank in {layer.name}, got {label}, whose "
            f"matrix maps {matrix.shape[1]} channels to {matrix.shape[0]}"
        )
    if "key" in sharing.readers(source):
        check_terms(layer)
    check_bias(layer, source)
    return matrix.mT * (_own_correction(layer, source) or 1.0)


def move_attention(
    layer: LayerDraft, *, read: Basis, written: Basis, identity: Source | None = None
) -> LayerDraft:
    """Return a layer whose input is in the basis ``read`` and whose output is in ``written``.

    If a projection has to become the identity, ``identity`` names it, and ``read`` must be the
    result of :func:`find_basis`.
    """
    weights = dict(layer.weights)
    config = layer.config
    if identity is not None:
        config = release_bias(config, weights, identity)
    weights["o_proj.weight"] = apply(weights["o_proj.weight"], written)
    if "o_proj.bias" in weights:
        weights["o_proj.bias"] = apply(weights["o_proj.bias"][:, None], written)[:, 0]
    moved = LayerDraft(config, weights, layer.name)
    return moved if read is None else _move_sources(moved, read, identity)


def _move_sources(
    layer: LayerDraft, read: Float[Tensor, "d_model d_model"], identity: Source | None
) -> LayerDraft:
    config, weights, sharing = layer.config, layer.weights, layer.config.variant.sharing
    own = None if identity is None else _own_correction(layer, identity)
    scale_sources(weights, (QUERY_ROPE,), own or 1.0)
    for source in config.variant.projections:
        name = layer.reading(source)
        weights[name] = undo(read, weights[name])
    names: dict[Role, str] = {
        role: _NEW if source == IDENTITY else (IDENTITY if source == identity else source)
        for role, source in sharing.roles.items()
    }
    changed = share(names["query"], names["key"], names["value"])
    # Undoes the change of basis, for a role that reads the input.
    undoing = {"weight": torch.linalg.inv(read).mT.contiguous()}
    if config.bias:
        undoing["bias"] = torch.zeros(len(read), dtype=read.dtype)
    parts = {_NEW: undoing}
    for source in config.variant.projections:
        start = f"{source}_proj."
        own_names = (name for name in weights if name.startswith(start))
        parts[source] = {name.removeprefix(start): weights[name] for name in own_names}
    kept = {name: one for name, one in weights.items() if name.split(".")[0][1:] != "_proj"}
    kept |= {name: one for name, one in weights.items() if name.startswith("o_proj.")}
    for role in ROLES:
        if names[role] != IDENTITY:
            place = changed.roles[role]
            kept |= {f"{place}_proj.{name}": one for name, one in parts[names[role]].items()}
    moved = LayerDraft(replace_variant(config, sharing=changed), kept, layer.name)
    return scale_scores(moved, 1.0 if own is not None else config.identity_correction)


def replace_variant(config: AttentionConfig, **fields: Any) -> AttentionConfig:
    """Return the configuration with some fields of its variant replaced."""
    variant = dataclasses.replace(config.variant, **fields)
    return dataclasses.replace(config, variant=variant)


def _own_correction(layer: LayerDraft, source: Source) -> float | None:
    """Return the identity correction of scores if a source makes only queries or only keys."""
    readers = layer.config.variant.sharing.readers(source)
    return layer.config.identity_correction if readers in (("query",), ("key",)) else None


def scale_scores(layer: LayerDraft, factor: float) -> LayerDraft:
    """Return a layer whose scores are multiplied by a factor.

    If the configuration does not apply the factor already, weights are multiplied by it.
    """
    if layer.config.identity_correction == factor:
        return layer
    scale = dataclasses.replace(layer.config.scale, identity="none")
    layer = LayerDraft(dataclasses.replace(layer.config, scale=scale), layer.weights, layer.name)
    if factor == 1.0:
        return layer
    sharing, weights = layer.config.variant.sharing, dict(layer.weights)
    for source in layer.config.variant.projections:
        readers = sharing.readers(source)
        if "value" in readers or not readers:
            continue
        scale_sources(weights, (source,), factor if len(readers) == 1 else math.sqrt(factor))
        scale_sources(weights, (QUERY_ROPE,), factor)
        return LayerDraft(layer.config, weights, layer.name)
    raise UsageError(
        f"expected either the score scale identity='none' or a projection used only for scores in "
        f"{layer.name}, got {format_label(layer.config.variant)}"
    )


def check_bias(layer: LayerDraft, source: Source) -> None:
    """Refuse a layer if removing the bias of a projection would change what the layer computes."""
    bias = layer.weights.get(f"{source}_proj.bias")
    if bias is None or not bias.any():
        return
    config, variant = layer.config, layer.config.variant
    readers = variant.sharing.readers(source)
    if "query" in readers:
        raise UsageError(
            f"expected no query bias in {layer.name}, got one with entries up to "
            f"{float(bias.abs().max()):.2g}; a query that is the layer input cannot have a bias; "
            "train with bias=False"
        )
    rotated = "key" in readers and variant.positions == "rotary"
    if rotated or (config.value_rope != "none" and "value" in readers):
        raise UsageError(
            f"expected no bias that is rotated in {layer.name}, got a bias of the "
            f"{' and '.join(readers)}"
        )
    if variant.core_name != "softmax":
        raise UsageError(
            f"expected the core softmax in {layer.name}, got {variant.core_name}; the bias of the "
            f"{' and '.join(readers)} can only be removed if attention weights sum to 1"
        )


def release_bias(
    config: AttentionConfig, weights: dict[str, Tensor], source: Source
) -> AttentionConfig:
    """Remove the bias of a projection from ``weights``; return the configuration.

    The bias of a value moves to the output bias. The bias of a key cancels in the softmax.
    """
    bias = weights.pop(f"{source}_proj.bias", None)
    if bias is None or not bias.any() or "value" not in config.variant.sharing.readers(source):
        return config
    added = weights["o_proj.weight"] @ bias
    own = weights.get("o_proj.bias")
    weights["o_proj.bias"] = added if own is None else own + added
    return dataclasses.replace(config, out_bias=True)
