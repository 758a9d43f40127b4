"""A role of attention becomes the layer input, in every layer or in one.

Source: Karbevski and Mijoski, "[Key,Value] is probably all you need", Theorems 4.1, 4.2 and 4.3;
the paper's later version claims that any one of the three projections can be removed.
"""

from qkvary.arch.sharing import IDENTITY, Role, Source
from qkvary.conversions.attention_bases import Basis, find_basis, make_plain
from qkvary.conversions.bases import attention_draft, is_uniform, move_network
from qkvary.conversions.draft import (
    Conditioning,
    Draft,
    RewriteOptions,
    Rewritten,
    choose_blocks,
    measure_condition,
)
from qkvary.storage.errors import UsageError


def rewrite_identity(draft: Draft, options: RewriteOptions, role: Role) -> Rewritten:
    """Return a network in which a role is the layer input, in every layer or in one."""
    config = draft.config
    if config.block.norm != "none":
        raise UsageError(
            f"expected a network without norms, got {config.block.norm}: a norm does "
            "not allow a change of basis (Theorem 8.2); train with norm none"
        )
    layers, statement = _choose_layers(draft, options, role)
    skips = f"skips around {config.block.skips}" if config.block.skips != "none" else "no skips"
    conditions = ["no norms", skips, *(["shared blocks"] * config.shared_blocks)]
    bias = f"no {role} bias"
    if role != "query":
        bias += ", or one without rotation, with a separate query and the core softmax"
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
            f"expected shared blocks or a sublayer without a skip for an identity {role} in every "
            "layer, got both skips, which keep one basis through all layers (Remark 2); "
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
    others = "Theorem 4.2 (every layer), but with skips that differ from those of the theorem"
    return layers or [0], theorems.get(config.block.skips, others)
