"""The map from the roles of attention to the projections that they read."""

from dataclasses import dataclass
from typing import Literal, get_args

Role = Literal["query", "key", "value"]
Source = Literal["q", "k", "v", "x", "q_rope", "k_rope"]

ROLES: tuple[Role, ...] = get_args(Role)
IDENTITY: Source = "x"
QUERY_ROPE: Source = "q_rope"
"""The source of the additional query channels of decoupled rotary positions."""
KEY_ROPE: Source = "k_rope"
"""The source of the additional key channels of decoupled rotary positions."""

LETTERS: dict[Role, str] = {"query": "Q", "key": "K", "value": "V"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Sharing:
    """The source of each role (query, key, value).

    A role reads its source, which is a projection or the layer input ``x``. A shared projection is
    called ``k`` if the key reads it, otherwise ``v`` if the value reads it, otherwise ``q``.
    With this rule, a sharing is a set partition of ``{q, k, v, x}``, and there are fifteen.
    """

    query: Source
    """The source of the query."""
    key: Source
    """The source of the key."""
    value: Source
    """The source of the value."""

    def __post_init__(self) -> None:
        given = (self.query, self.key, self.value)
        canonical = _canonical_sources(given)
        if given != canonical:
            raise ValueError(
                f"expected the source names {canonical}, got {given}; a shared projection is "
                "called k if the key reads it, otherwise v if the value reads it, otherwise q"
            )

    @property
    def roles(self) -> dict[Role, Source]:
        """The source of each role, in the order query, key, value."""
        return {"query": self.query, "key": self.key, "value": self.value}

    @property
    def projections(self) -> tuple[Source, ...]:
        """The learned projections, each once, in the order q, k, v."""
        used = set(self.roles.values()) - {IDENTITY}
        return tuple(source for source in ("q", "k", "v") if source in used)

    @property
    def cached(self) -> tuple[Source, ...]:
        """The sources of key and value, which autoregressive decoding has to cache."""
        return (self.key,) if self.key == self.value else (self.key, self.value)

    @property
    def is_symmetric(self) -> bool:
        """Whether query and key read one source, so that the content scores form a Gram matrix."""
        return self.query == self.key

    def readers(self, source: Source) -> tuple[Role, ...]:
        """Return the roles (query, key, value) that read ``source``."""
        return tuple(role for role in ROLES if self.roles[role] == source)

    def format_label(self, marks: dict[Source, str]) -> str:
        """Return the papers' label, such as ``Q-K=V``.

        ``marks`` has the marks by source, such as ``[r16]``. A mark follows the first role that
        reads its source.
        """
        if self.query == self.value != self.key and self.query != IDENTITY:
            marked = f"-K{marks['k']}" if "k" in marks else ""
            rest = "-I" if self.key == IDENTITY else marked
            return f"Q{marks.get(self.query, '')}=V{rest}"
        text, previous = "", None
        for role, source in self.roles.items():
            letter = "I" if source == IDENTITY else LETTERS[role]
            shared = source == previous and source != IDENTITY
            joint = "" if previous is None else ("=" if shared else "-")
            marked = not shared and (source != IDENTITY or role == "query")
            text += joint + letter + (marks.get(source, "") if marked else "")
            previous = source
        return "QKV" if text == "Q-K-V" else text

    def format_tuple(self, marks: dict[Source, str]) -> str:
        """Return the tuple form, such as ``q,k=v``: one group per source; ``x`` is the input."""
        groups: list[str] = []
        seen: set[Source] = set()
        for role, source in self.roles.items():
            if source == IDENTITY:
                groups.append("x" + (marks.get(source, "") if role == "query" else ""))
            elif source not in seen:
                seen.add(source)
                names = "=".join(LETTERS[reader].lower() for reader in self.readers(source))
                first = LETTERS[role].lower()
                groups.append(names.replace(first, first + marks.get(source, ""), 1))
        return ",".join(groups)


def share(query: str, key: str, value: str) -> Sharing:
    """Build a sharing from three names. Equal names share; ``x`` is the layer input."""
    sources = _canonical_sources((query, key, value))
    return Sharing(query=sources[0], key=sources[1], value=sources[2])


def _canonical_sources(names: tuple[str, str, str]) -> tuple[Source, Source, Source]:
    query, key, value = names
    # Of equal names the last counts.
    renamed: dict[str, Source] = {query: "q", value: "v", key: "k", IDENTITY: IDENTITY}
    return renamed[query], renamed[key], renamed[value]


_NAMINGS = {
    share(query, key, value): None
    for query in ("q", "x")
    for key in ("q", "k", "x")
    for value in ("q", "k", "v", "x")
}
SHARINGS: tuple[Sharing, ...] = tuple(
    sorted(_NAMINGS, key=lambda sharing: len(sharing.projections), reverse=True)
)
"""All fifteen sharings; those with the most learned projections come first."""
