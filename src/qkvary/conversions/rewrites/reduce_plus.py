"""Replaces the position term ``+`` by a temperature, and by a bias for each key position."""

import dataclasses

import torch

from qkvary.conversions.attention_bases import LayerDraft
from qkvary.conversions.bases import change_layers
from qkvary.conversions.draft import Draft, RewriteOptions, Rewritten
from qkvary.nn.terms import PlusBias
from qkvary.storage.errors import UsageError

STATEMENT = (
    "Section 2 of Kayyam et al. defines the position term '+', which is equivalent to a learned "
    "factor of the scores (the temperature) and a bias for each key position"
)


def rewrite(draft: Draft, options: RewriteOptions) -> Rewritten:
    """Return a network in which a temperature and a key bias replace the position term ``+``.

    Each channel of the term's sinusoid depends either on the row (the query's position) or on the
    column (the key's position). Terms that depend only on the row cancel in the softmax.
    """
    tokens, notes = draft.config.max_tokens, list[str]()

    def change(layer: LayerDraft) -> LayerDraft | None:
        if not layer.config.variant.plus:
            return None
        weights = dict(layer.weights)
        term = PlusBias(layer.config).double()
        weight, _ = weights.pop("plus.weight"), weights.pop("plus.bias")
        # The bias of the published map shifts whole rows, which the softmax ignores.
        term.load_state_dict({"weight": weight, "bias": torch.zeros(len(weight))})
        with torch.no_grad():
            table = term.key_bias(torch.arange(tokens)[None])[0].mT.contiguous()
        gain = weight.sum(dim=-1)
        weights |= {"key_bias.gain": gain, "key_bias.weight": table}
        position = dataclasses.replace(layer.config.position, key_positions=tokens)
        variant = dataclasses.replace(layer.config.variant, plus=False, key_bias=True)
        config = dataclasses.replace(layer.config, variant=variant, position=position)
        low, high = float(gain.min()), float(gain.max())
        taus = f"{low:.3g}" if len(gain) == 1 else f"{low:.3g} to {high:.3g}"
        biases = f"{float(table.min()):.3g} to {float(table.max()):.3g}"
        notes.append(f"{layer.name}: tau {taus}, biases from {biases}")
        return LayerDraft(config, weights, layer.name)

    if not change_layers(draft, options.layer, change):
        raise UsageError("expected a layer with the position term '+', got none")
    return Rewritten(
        config=draft.config,
        weights=draft.weights,
        statement=STATEMENT,
        conditions=("the position term '+' with the core softmax",),
        notes=tuple(notes),
    )
