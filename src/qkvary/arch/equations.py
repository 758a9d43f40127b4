"""The attention of a variant as an equation in plain text; drawings show parts of it.

The tests evaluate the text and compare the result with the layer.
"""

import math
import re

from qkvary.arch.attention import compares_identity, correct_identity
from qkvary.arch.sharing import IDENTITY, Source
from qkvary.arch.terms import CORES, NORMALISERS
from qkvary.arch.variants import Variant

HEAD_INPUT = "xₕ"
"""The layer input as query, key or value. Each head reads its own channels of the input."""

_QUERY_FORMS = {
    "plain": "{query}",
    "residual": f"{HEAD_INPUT} + {{query}}",
    "residual-gelu": f"{HEAD_INPUT} + gelu({{query}})",
    "map": "{query} M",
}
_ATOM = re.compile(r"\w*(\((?:[^()]|\([^()]*\))*\))?")
"""Matches a word, or an expression in parentheses with an optional function name before it."""


def write_equation(variant: Variant) -> str:
    """Return the attention of one head as an equation in plain text.

    An example is "softmax(s (x Wq) (x Wk)ᵀ) (x Wk)". The equation leaves out the output projection
    and the causal mask, and assumes ``value_rope = "counter"``. :func:`define_symbols` explains
    the symbols.
    """
    query, key, value = (_write_source(variant, one) for one in variant.sharing.roles.values())
    return write_mixture(variant, write_weights(variant, query, key), value)


def write_weights(variant: Variant, query: str, key: str) -> str:
    """Return the equation of the attention weights, given the equations of query and key."""
    query = _QUERY_FORMS[variant.query_form].format(query=query)
    bare = [_change(variant, query, "q"), _change(variant, key, "k")]
    first, second = map(_group, bare)
    roles = {"query": first, "key": second, "bare_query": bare[0], "bare_key": bare[1]}
    core = CORES[variant.core]
    products = core.products.format(**roles) or f"{first} {second}ᵀ"
    scores, is_scaled = products, bool(core.products)
    for term in variant.terms:
        if not (is_scaled or term.before_scale or term.scores == "{scores}"):
            scores, is_scaled = f"s {scores}", True
        scores = term.write(term.scores, variant, scores)
    scores = scores if is_scaled else f"s {scores}"
    if core.keeps_state:
        kind = variant.normaliser if variant.is_normalised else "unnormalised"
        scores = NORMALISERS[kind][1].format(scores=scores, products=products)
    return core.equation.format(scores=scores, seen=_write_seen(variant), **roles)


def write_mixture(variant: Variant, weights: str, value: str) -> str:
    """Return the equation of the weighted sum, given the equations of weights and values."""
    value = _change(variant, value, "v")
    if variant.positions == "rotary" and variant.sharing.key == variant.sharing.value:
        return f"R⁻¹({weights} R({value}))"
    return f"{weights} {_group(value)}"


def define_symbols(variant: Variant) -> tuple[str, ...]:
    """Return the definitions of the symbols in a variant's equation, one text per symbol."""
    lines = ["x is the layer input; products with W include the bias of the projection"]
    if variant.identity_roles:
        lines.append(f"{HEAD_INPUT} is the head's own channels of the layer input")
    if variant.k_rank or variant.v_rank:
        lines.append("A and B are the two factors of a low-rank projection")
    if variant.query_form == "map":
        lines.append("M is a learned matrix, one for each query head")
    if variant.is_normalised:
        lines.append("Σⱼ is the sum over the visible tokens j; a sum below 1e-6 counts as 1e-6")
    elif variant.core != "sima":
        lines.append(_define_scale(variant))
    return (*lines, *(term.write(term.where, variant) for term in variant.terms if term.where))


def _define_scale(variant: Variant) -> str:
    more = "" if variant.decoupled is None else f" + {variant.decoupled}"
    root = f"√(head_dim{more})" if more else "√head_dim"
    if not compares_identity(variant):
        return f"s = 1/{root}"
    learned = math.sqrt(1 / 3)
    factor = correct_identity(variant, learned, 1 / 3)
    return f"s = {factor:.4g}/{root} if projections are initialised like torch's linear layers"


def _write_seen(variant: Variant) -> str:
    """Return the condition for visible pairs that window and stride set, after a semicolon.

    Return an empty text if the variant has neither a window nor a stride.
    """
    window = [] if variant.window is None else [f"|i-j| < {variant.window}"]
    stride = [] if variant.stride is None else [f"{variant.stride} divides i-j"]
    return "".join(f"; {' or '.join(part)}" for part in (window + stride,) if part)


def _write_source(variant: Variant, source: Source) -> str:
    if source == IDENTITY:
        return HEAD_INPUT
    return f"x A{source} B{source}" if variant.rank(source) else f"x W{source}"


def _change(variant: Variant, role: str, letter: str) -> str:
    for term in variant.terms:
        if letter in term.letters:
            role = term.role.format(role=role, letter=letter)
    return role


def _group(text: str) -> str:
    return text if _ATOM.fullmatch(text) else f"({text})"
