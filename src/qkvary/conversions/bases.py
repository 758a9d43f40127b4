"""Makes the query, key or value of layers equal to the layer input, by changes of basis.

The residual stream gets another basis at the input of each layer. A sublayer with a skip needs the
same basis for its input and output. In a sublayer without a skip, the last matrix maps into the
basis of the next sublayer. A network with norms allows no change of basis.

Source: Karbevski and Mijoski, "[Key,Value] is probably all you need", Theorems 4.1, 4.2 and 4.3;
the paper's later version claims that any one of the three projections can be removed.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence

import torch

from qkvary.arch.attention import AttentionConfig
from qkvary.arch.networks import LanguageModelConfig
from qkvary.arch.sharing import IDENTITY, Role, Source
from qkvary.conversions.attention_bases import (
    Basis,
    LayerDraft,
    apply,
    find_basis,
    make_plain,
    move_attention,
    undo,
)
from qkvary.conversions.draft import (
    Conditioning,
    Draft,
    RewriteOptions,
    Rewritten,
    block_prefix,
    choose_blocks,
    measure_condition,
    replace_layers,
)
from qkvary.nn.layout import sinusoid
from qkvary.storage.errors import UsageError

_NEARLY_ORTHOGONAL = 1e-12
"""A basis B counts as orthogonal if B^T B differs from the identity by at most this."""


def is_uniform(config: LanguageModelConfig) -> bool:
    """Return whether the rewrite keeps one basis of the residual stream in all layers."""
    return config.shared_blocks or config.block.skips == "both"


def attention_draft(draft: Draft, layer: int) -> LayerDraft:
    """Return the attention of the layer with index ``layer``, from 0."""
    block = 0 if draft.config.shared_blocks else layer
    weights = draft.part(f"{block_prefix(block)}attention.")
    return LayerDraft(draft.config.layers[layer], weights, f"layer {layer + 1}")


def change_layers(
    draft: Draft, layer: int | None, change: Callable[[LayerDraft], LayerDraft | None]
) -> list[LayerDraft]:
    """Change attention layers in place, and return the new ones.

    ``layer`` counts from 1; ``None`` stands for every layer. A layer stays as it is if ``change``
    returns ``None``.
    """
    changed: dict[int, LayerDraft] = {}
    for index in choose_blocks(draft, layer):
        new = change(attention_draft(draft, index))
        if new is not None:
            changed[index] = new
            draft.replace_part(f"{block_prefix(index)}attention.", new.weights)
    if changed:
        configs = {index: new.config for index, new in changed.items()}
        draft.config = replace_layers(draft.config, configs)
    return list(changed.values())


def rewrite_identity(draft: Draft, options: RewriteOptions, role: Role) -> Rewritten:
    """Return a network in which ``role`` is the layer input, in one chosen layer or in all."""
    config = draft.config
    if config.block.norm != "none":
        raise UsageError(
            f"expected a network without norms, got {config.block.norm}: a norm does "
            "not allow a change of basis (Karbevski and Mijoski, Remark 7); train with norm none"
        )
    layers, statement = _choose_layers(draft, options, role)
    if role != "query":
        statement = f"the construction of {statement} for the {role}"
    skips = f"skips around {config.block.skips}" if config.block.skips != "none" else "no skips"
    conditions = ["no norms", skips, *(["shared blocks"] * config.shared_blocks)]
    bias = f"no {role} bias"
    if role != "query":
        bias += (
            f" (or a {role} bias that is not rotated, if the query is separate and the core is the "
            "softmax)"
        )
    bases: list[Basis] = [None] * draft.blocks
    identities: dict[int, Source] = {}
    measured: list[Conditioning] = []
    for index in layers:
        # A nonlinear query has no matrix; but the matrices of other roles can still be inverted.
        layer = make_plain(attention_draft(draft, index))
        bases[index] = basis = find_basis(layer, role)
        identities[index] = layer.config.variant.sharing.roles[role]
        measured.append(measure_condition(basis, f"W_{role[0].upper()} of {layer.name}"))
    if is_uniform(config):
        bases = [bases[layers[0]]] * draft.blocks
    moved, notes = move_network(draft, bases, identities)
    return Rewritten(
        config=moved.config,
        weights=moved.weights,
        statement=statement,
        conditions=(*conditions, f"square and invertible {role} matrices", bias),
        conditioning=tuple(measured),
        notes=tuple(notes),
    )


def _choose_layers(draft: Draft, options: RewriteOptions, role: Role) -> tuple[list[int], str]:
    config = draft.config
    if options.layer is not None:
        return [*choose_blocks(draft, options.layer)], "Theorem 4.1 (one layer)"
    if config.shared_blocks:
        return [0], "Theorem 4.3 (shared blocks)"
    if is_uniform(config) and config.num_layers > 1:
        raise UsageError(
            f"expected shared blocks or a missing skip to make the {role} of every layer the layer "
            "input, got both skips, with which the rewrite keeps one basis (Remark 2); "
            f"choices: one layer from 1 to {config.num_layers}"
        )
    layers = [
        index
        for index, layer in enumerate(config.layers)
        if layer.variant.sharing.roles[role] != IDENTITY
    ]
    theorems = {
        "both": "Theorem 4.1 (one layer)",
        "attention": "Theorem 4.2 (every layer)",
    }
    others = "Theorem 4.2 (every layer), but the skips are not those of the theorem"
    return layers or [0], theorems.get(config.block.skips, others)


def move_network(
    draft: Draft, bases: Sequence[Basis], identities: Mapping[int, Source]
) -> tuple[Draft, list[str]]:
    """Return a network with its residual stream in other bases, and notes on side effects.

    ``bases`` holds the basis of each layer's input: the same object for all layers if the network
    fulfils :func:`is_uniform`. ``identities`` maps the index of a layer to the projection that
    becomes the identity.
    """
    last, is_tied = _last_basis(draft.config, bases)
    weights = {
        name: one for name, one in draft.weights.items() if not name.startswith("stack.blocks.")
    }
    moved = Draft(draft.config, weights)
    layers = {
        index: _move_block(draft, moved, index, pair, identities.get(index))
        for index, pair in enumerate(zip(bases, [*bases[1:], last], strict=True))
    }
    moved.config = replace_layers(draft.config, layers)
    notes = _move_embedding(moved, bases[0])
    if last is None or is_tied:
        return moved, notes
    was_tied = draft.config.tied_head
    head = draft.weights["embedding" if was_tied else "head_weight"]
    moved.weights["head_weight"] = undo(last, head)
    if was_tied:
        moved.config = dataclasses.replace(moved.config, tied_head=False)
        notes.append(
            "the output head is no longer tied to the embedding, because the basis is not "
            "orthogonal (Remark 4)"
        )
    return moved, notes


def _last_basis(config: LanguageModelConfig, bases: Sequence[Basis]) -> tuple[Basis, bool]:
    """Return the basis after the last layer, and whether the head stays tied."""
    first = bases[0]
    if not config.tied_head:
        return (first if is_uniform(config) else None), False
    if first is None:
        return None, True
    if not is_uniform(config):
        # Logits become y B_last (E B_1)^T = y E^T, unchanged.
        return torch.linalg.inv(first).mT.contiguous(), True
    distance = (first.mT @ first - torch.eye(len(first), dtype=first.dtype)).abs().max()
    return first, float(distance) < _NEARLY_ORTHOGONAL


def _move_block(
    draft: Draft,
    moved: Draft,
    index: int,
    bases: tuple[Basis, Basis],
    identity: Source | None,
) -> AttentionConfig:
    (read, written), block = bases, draft.config.block
    inner = read if block.has_attention_skip else written
    prefix, layer = block_prefix(index), attention_draft(draft, index)
    if read is not None:
        layer = make_plain(layer)
    attention = move_attention(layer, read=read, written=inner, identity=identity)
    moved.replace_part(f"{prefix}attention.", attention.weights)
    feeding = draft.part(f"{prefix}feed_forward.")
    for name in ("up.weight", "gate.weight"):
        if name in feeding:
            feeding[name] = undo(inner, feeding[name])
    feeding["down.weight"] = apply(feeding["down.weight"], written)
    if "down.bias" in feeding:
        feeding["down.bias"] = apply(feeding["down.bias"][:, None], written)[:, 0]
    moved.replace_part(f"{prefix}feed_forward.", feeding)
    return attention.config


def _move_embedding(moved: Draft, basis: Basis) -> list[str]:
    if basis is None:
        return []
    config, weights = moved.config, moved.weights
    weights["embedding"] = weights["embedding"] @ basis
    if config.positions == "none":
        return []
    if config.positions == "learned":
        weights["position_embedding"] = weights["position_embedding"] @ basis
        return []
    index = torch.arange(config.max_tokens)[None]
    table = sinusoid(index, config.d_model, torch.float64, config.positions)[0]
    weights["position_embedding"] = table @ basis
    moved.config = dataclasses.replace(config, positions="learned")
    size = f"{config.max_tokens:,} x {config.d_model:,}"
    note = f"{config.positions} positions are now stored as a table of {size} values"
    return [f"{note}, because they are written in another basis"]
