"""Describes a variant of attention: its sharing, heads, ranks and score terms, but no sizes.

Sizes are in ``arch.attention``, and the grammar of labels is in ``arch.labels``.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from qkvary.arch.parts import check_choices
from qkvary.arch.sharing import IDENTITY, KEY_ROPE, QUERY_ROPE, Role, Sharing, Source, share
from qkvary.arch.terms import CORES, DEFAULTS, OWN, ScoreTerms
from qkvary.text.names import listed, suggest

QueryForm = Literal["plain", "residual", "residual-gelu", "map"]

IDENTITY_WEIGHT_DECAY_FACTOR = 0.3125
"""2^-5 / 0.1: paper 3 trains identity queries with weight decay 2^-5, its baseline with 0.1."""

MOST_HEADS = 1024
"""The largest number of KV heads that a message suggests."""


class UnknownPartError(ValueError):
    """Raised if a variant names a part from a user's file that was not imported."""


@dataclass(frozen=True, slots=True)
class Rank:
    """The inner width of a low-rank projection: a number, or a fraction of the layer's width."""

    size: int
    """The inner width, or the divisor of ``d_model`` if ``of_width`` is true."""
    of_width: bool = False
    """Whether the inner width is ``d_model / size``."""

    def __post_init__(self) -> None:
        if self.size < 1 or (self.of_width and self.size < 2):
            raise ValueError(
                "expected a rank of at least 1, or d/n with n of at least 2, "
                f"got {'d/' if self.of_width else ''}{self.size}"
            )

    def resolve(self, d_model: int) -> int:
        """Return the inner width for a layer of ``d_model`` channels."""
        if not self.of_width:
            return self.size
        if d_model % self.size:
            raise ValueError(
                f"expected a width divisible by {self.size} for rank {self}, got {d_model}"
            )
        return d_model // self.size

    def __str__(self) -> str:
        return f"d/{self.size}" if self.of_width else f"r{self.size}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant(ScoreTerms):
    """A variant of attention: everything that can differ between attention layers of one size.

    Raises:
        ValueError: for a meaningless combination; the message names a valid one.
    """

    sharing: Sharing
    """The source (projection or layer input) from which each of query, key and value is made."""
    query_form: QueryForm = "plain"
    """``residual``: q = x + x W; ``residual-gelu``: q = x + gelu(x W); ``map``: q = source M_h."""
    num_kv_heads: int | None = None
    """Number of KV heads (1 = MQA); ``None`` for as many as query heads."""
    k_rank: Rank | None = None
    """Rank of the projection that the key reads."""
    v_rank: Rank | None = None
    """Rank of the value's own projection."""

    def __post_init__(self) -> None:
        check_choices(self)
        object.__setattr__(self, "temperature", float(self.temperature))
        if self.soft_cap is not None:
            object.__setattr__(self, "soft_cap", float(self.soft_cap))
        self._check_projections()
        self._check_key_value()
        self._check_scores()
        self._check_core()

    def _check_projections(self) -> None:
        """Refuse query forms, numbers of heads and ranks that do not fit the sharing."""
        query, form, heads = self.sharing.query, self.query_form, self.num_kv_heads
        if form in ("residual", "residual-gelu") and query != "q":
            raise ValueError(
                f"expected a query with its own projection, which the query form {form} needs, "
                f"got a query made from {query}; choices: Q[{form}]-K-V, Q[{form}]-K=V"
            )
        if form == "map" and len(self.sharing.readers(query)) == 1:
            raise ValueError(
                "expected a query that shares its source with the key or the value, because the "
                f"query form is map, got a query made from {query}, which only the query reads; "
                "choices: Q[map]=K-V, Q[map]=V/g"
            )
        # Otherwise the map of every head could be merged into that head's key projection.
        free_key = self.sharing.readers("k") == ("key",) and heads is None
        if form == "map" and free_key and self.positions != "rotary":
            raise ValueError(
                "expected a key with a shared projection or fewer heads, got a key with its own "
                "projection and as many heads as the query, which can absorb the map of the query: "
                "q M k = q (k M'); choices: Q[map]=K-V, Q[map]=V/g, Q=V"
            )
        if heads is not None and heads < 1:
            raise ValueError(f"expected at least 1 KV head, got {heads}")
        tied = query in (self.sharing.key, self.sharing.value) and query != IDENTITY
        if heads is not None and tied and form != "map":
            raise ValueError(
                "expected a query with its own projection, because key and value have fewer heads "
                f"than the query (KV heads: {heads}), got a query made from {query}; choices: "
                "Q-K=V with heads shared (Q-GQA-g, Q-MQA), or a map (Q[map]=K-V/g)"
            )
        if heads is not None and IDENTITY in self.sharing.cached:
            raise ValueError(
                "expected a learned key and a learned value, because the number of KV heads is "
                f"set (to {heads}), got a key or a value that is the layer input"
            )
        if self.k_rank and self.sharing.key == IDENTITY:
            raise ValueError("expected a learned key for a k_rank, got the layer input as the key")
        if self.v_rank and self.sharing.value != "v":
            raise ValueError(
                "expected a value with its own projection for a v_rank, got a value made from "
                f"{self.sharing.value}"
            )

    def _check_key_value(self) -> None:
        """Refuse options that have no meaning for a shared key and value."""
        sharing, given = self.sharing, self.sharing.format_tuple({})
        is_shared = sharing.key == sharing.value != IDENTITY
        if self.kv_norm and not is_shared:
            raise ValueError(
                "expected a key and a value that share a learned projection for kv-norm, got "
                f"{given}; choices: Q-K=V, I-K=V, Q=K=V"
            )
        if self.head_norm != "none" and not self.can_norm_heads:
            raise ValueError(
                f"expected key and value to be different tensors for {self.head_norm}, got "
                f"{given}; choices: kv-norm, which normalises both"
            )
        if self.latent is None:
            return
        if self.latent < 1:
            raise ValueError(f"expected a latent of at least 1 channel, got {self.latent}")
        if not is_shared or sharing.query == sharing.key or self.k_rank:
            rank = f" with rank {self.k_rank}" if self.k_rank else ""
            raise ValueError(
                "expected a key and a value that share one full-rank projection, which the query "
                f"does not read, because a latent is set, got {given}{rank}; choices: Q-K=V, I-K=V"
            )
        if self.positions == "rotary":
            raise ValueError(
                "expected positions that do not change keys, because the keys are computed from a "
                "latent, got rotary; choices: decoupled-N, alibi, relative"
            )

    def _check_scores(self) -> None:
        """Refuse score terms with numbers out of range, and redundant or incompatible ones."""
        if self.decoupled is not None and (self.decoupled < 2 or self.decoupled % 2):
            raise ValueError(
                "expected an even number of decoupled rotary channels of at least 2, got "
                f"{self.decoupled}"
            )
        if self.decoupled is not None and self.positions == "rotary":
            raise ValueError("expected rotary or decoupled positions, got both")
        if self.own is not None and self.own not in OWN:
            known = [f"own-{name}" for name in OWN]
            hint = suggest(f"own-{self.own}", known) if known else "import the file first"
            raise UnknownPartError(
                f"expected a score term, core or layer that an imported file registers, got "
                f"own-{self.own}; {hint}"
            )
        if self.window is not None and self.window < 1:
            raise ValueError(f"expected a window of at least 1 token, got {self.window}")
        if self.stride is not None and self.stride < 2:
            raise ValueError(f"expected a stride of at least 2 tokens, got {self.stride}")
        if self.plus and self.key_bias:
            raise ValueError("expected + or key-bias, got both, which compute the same function")
        if self.soft_cap is not None and not 0 < self.soft_cap < float("inf"):
            raise ValueError(f"expected a positive soft cap, got {self.soft_cap}")
        if not self.temperature > 0 or self.temperature == float("inf"):
            raise ValueError(f"expected a positive temperature, got {self.temperature}")
        compares_itself = self.sharing.is_symmetric and self.query_form != "map"
        others = {
            "decoupled positions": self.decoupled is not None,
            "kv-norm": self.kv_norm,
            self.head_norm: self.head_norm != "none",
        }
        if self.diagonal != "none" and (not compares_itself or any(others.values())):
            given = [self.sharing.format_tuple({}), *(name for name, has in others.items() if has)]
            raise ValueError(
                "expected query and key to be the same tensor for diagonal normalisation, "
                f"got {' with '.join(given)}; choices: Q=K-V, Q=K=V"
            )

    def _check_core(self) -> None:
        """Refuse terms that have no meaning with the core (the rule from scores to weights)."""
        core = CORES[self.core]
        some = dict.fromkeys(name for entry in CORES.values() for name in entry.fields)
        meaningless = [
            name
            for name in some
            if name not in core.fields and getattr(self, name) != DEFAULTS[name]
        ]
        if meaningless:
            raise ValueError(
                f"expected no {listed(meaningless, 'or')} with the core {core.name}; choices: "
                f"{listed(core.fields, 'or') or 'no score term'}"
            )
        if self.normaliser == "undecayed-sum" and self.decay == "none":
            raise ValueError(
                "expected a decay with undecayed-sum, got none; choices: decay-learned, decay-fixed"
            )
        if self.latent is not None and core.keeps_state:
            raise ValueError(
                f"expected no latent with the core {core.name}, which caches no tokens, got a "
                f"latent of {self.latent} channels"
            )

    @property
    def projections(self) -> tuple[Source, ...]:
        """The learned projections of query, key, value and decoupled positions."""
        rope = () if self.decoupled is None else (QUERY_ROPE, KEY_ROPE)
        return (*self.sharing.projections, *rope)

    @property
    def cached(self) -> tuple[Source, ...]:
        """The sources that decoding has to cache."""
        rope = () if self.decoupled is None else (KEY_ROPE,)
        return (*self.sharing.cached, *rope)

    @property
    def identity_roles(self) -> tuple[Role, ...]:
        """The roles (query, key, value) that contain the layer input, residual queries included."""
        roles: tuple[Role, ...] = self.sharing.readers(IDENTITY)
        residual: tuple[Role, ...] = ("query",) if "residual" in self.query_form else ()
        return (*residual, *roles)

    @property
    def can_norm_heads(self) -> bool:
        """Whether query and key may have their own norms: key and value are different tensors."""
        return self.sharing.key != self.sharing.value and self.latent is None

    @property
    def weight_decay_factor(self) -> float:
        """The factor by which the query-identity paper multiplies this variant's weight decay."""
        return IDENTITY_WEIGHT_DECAY_FACTOR if "query" in self.identity_roles else 1.0

    def keep_positions(self, own: "Variant") -> "Variant":
        """Return this variant with positions, norms and soft cap from ``own`` where it has none.

        Positions and the soft cap are taken only if the core of this variant supports them, and
        norms only if key and value are different tensors.
        """
        fields = CORES[self.core].fields
        kept: dict[str, Any] = {}
        if self.head_norm == DEFAULTS["head_norm"] and self.can_norm_heads:
            kept["head_norm"] = own.head_norm
        if self.soft_cap is None and "soft_cap" in fields:
            kept["soft_cap"] = own.soft_cap
        if not self.has_positions and "positions" in fields:
            kept |= {"positions": own.positions, "decoupled": own.decoupled}
        return replace(self, **kept) if kept else self

    def for_layers(self, num_layers: int) -> tuple["Variant", ...]:
        """Return a tuple of ``num_layers`` entries, one per layer; each entry is this variant."""
        return (self,) * num_layers

    def rank(self, source: Source) -> Rank | None:
        """Return the rank of a learned projection."""
        return {"k": self.k_rank, "v": self.v_rank}.get(source)

    def kv_heads(self, num_heads: int) -> int:
        """Return the number of KV heads of a layer with ``num_heads`` query heads.

        Raises:
            ValueError: if the query heads cannot be divided among the KV heads.
        """
        heads = num_heads if self.num_kv_heads is None else self.num_kv_heads
        if num_heads % heads:
            # Sizes come from files: the number of heads may be absurdly large, but the list must
            # stay short.
            few = range(1, min(num_heads, MOST_HEADS) + 1)
            divisors = ", ".join(str(n) for n in few if num_heads % n == 0)
            raise ValueError(
                f"expected KV heads that divide {num_heads} query heads, got {heads}; "
                f"choices: {divisors}"
            )
        return heads


QKV = Variant(sharing=share("q", "k", "v"))
"""Standard attention, the baseline of every comparison."""


@dataclass(frozen=True, slots=True)
class LayerVariants:
    """The variants of a network's layers from first to last, if the layers differ."""

    runs: tuple[tuple[Variant, int], ...]
    """Variants, each with the number of consecutive layers that have it."""

    @property
    def layers(self) -> tuple[Variant, ...]:
        """The variant of each layer."""
        return tuple(variant for variant, count in self.runs for _ in range(count))

    def keep_positions(self, own: Variant) -> "AnyVariant":
        """Return each variant with positions, norms and soft cap from ``own`` where it has none."""
        return join_layers([one.keep_positions(own) for one in self.layers])

    def for_layers(self, num_layers: int) -> tuple[Variant, ...]:
        """Return the variant of each layer of a network with ``num_layers`` layers.

        Raises:
            ValueError: if there are more or fewer variants than layers.
        """
        # Sizes come from text: there may be too many layers to list.
        given = sum(count for _, count in self.runs)
        if given != num_layers:
            raise ValueError(
                f"expected variants for the {num_layers} layers of the network, got {given}"
            )
        return self.layers


AnyVariant = Variant | LayerVariants
"""One variant for all layers of a network, or one per layer."""


def join_layers(variants: Sequence[Variant]) -> AnyVariant:
    """Return the variants of a network's layers as one value."""
    runs: list[tuple[Variant, int]] = []
    for variant in variants:
        before = runs.pop() if runs and runs[-1][0] == variant else (variant, 0)
        runs.append((variant, before[1] + 1))
    return runs[0][0] if len(runs) == 1 else LayerVariants(tuple(runs))
