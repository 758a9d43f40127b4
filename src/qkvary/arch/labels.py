"""The spelling of variants as labels.

Each variant has one canonical label. The papers' labels and tuples are parsed too.

Grammar (docs/decisions/0002): ``BASE[/heads][+][@option...]``. BASE is a label such as ``Q-K=V`` or
a tuple such as ``q,k=v``. A query, key or value may carry a mark: ``Q[residual]``, ``K[r16]``. If
layers differ, each label has a layer count, ``QKV*3,Q-K=V*3`` (docs/decisions/0028).
"""

import re
from functools import lru_cache
from typing import Any, get_args

from qkvary.arch.sharing import IDENTITY, SHARINGS, Sharing, Source, share
from qkvary.arch.terms import DEFAULTS, OPTIONS
from qkvary.arch.variants import AnyVariant, LayerVariants, QueryForm, Rank, Variant, join_layers
from qkvary.text.names import near_names

_ALIASES = {
    "MHA": "QKV",
    "QK-V": "Q=K-V",
    "KV": "Q=K-V",
    "KV-NOPOS": "Q=K-V",
    "QK": "Q=K-V",
    "KV+POS": "(Q=K-V)+",
    "KV_1": "Q-K=V",
    "Q-KV": "Q-K=V",
    "K": "Q=K=V",
    "I-KV": "I-K-V",
    "Q=V-K": "Q=V",
    "Q-K-V": "QKV",
}
"""Other names in the papers' texts and code, in capitals."""

MOST_LAYERS = 10_000
"""Maximum number of layers. A larger number is refused, because counting would be slow."""

_ABSORBED = "; a map between key and value is absorbed by the output projection"
_FORMS = get_args(QueryForm)[1:]

_SHAPE = re.compile(r"(?P<base>[^@]*?)(?:/(?P<heads>\w+))?(?P<plus>\+?)(?P<options>(?:@[^@]+)*)")
_HEADS = re.compile(r"(?P<tied>Q-)?(?:(?P<mqa>MQA)|GQA-(?P<count>\d+))", re.IGNORECASE)
_RUN = re.compile(r"(?P<label>[^*]+?)\*(?P<count>\d{1,9})(?:,|$)")
_MARK = re.compile(r"\[([^\]]*)\]")
_VALUES: dict[type[Any], str] = {
    bool: "",
    int: r"\d+",
    float: r"\d*\.?\d+(?:e[+-]?\d+)?",
    str: "[a-z][a-z0-9-]*",
}
"""Regular expressions for the value of an option, by the type of the value."""


def format_label(variant: AnyVariant) -> str:
    """Return the canonical label. ``parse_label`` turns it back into an equal value."""
    if isinstance(variant, LayerVariants):
        return ",".join(f"{format_label(one)}*{count}" for one, count in variant.runs)
    base, heads = variant.sharing.format_label(_marks(variant)), variant.num_kv_heads
    if heads is not None:
        prefix = {"QKV": "", "Q-K=V": "Q-"}.get(base)
        group = "MQA" if heads == 1 else f"GQA-{heads}"
        base = f"{base}/{heads}" if prefix is None else prefix + group
    return (f"({base})+" if variant.plus else base) + _format_options(variant)


def format_tuple(variant: Variant) -> str:
    """Return a variant's label in the form of a tuple, such as ``q,k=v/4``."""
    heads = "" if variant.num_kv_heads is None else f"/{variant.num_kv_heads}"
    base = variant.sharing.format_tuple(_marks(variant))
    return base + heads + ("+" if variant.plus else "") + _format_options(variant)


@lru_cache(maxsize=1024)
def parse_variant(text: str) -> Variant:
    """Parse a variant's label, such as ``Q-K=V``, or the same label as a tuple, ``q,k=v``.

    Args:
        text: For example ``Q-K=V``, ``Q-GQA-4``, ``(Q=K-V)+``, ``q,k=v``, ``I-K=V/1@alibi``.

    Raises:
        ValueError: for an unknown spelling (the message has the nearest known spellings) or a
            meaningless combination.
    """
    compact = "".join(text.split()).replace("–", "-").replace("−", "-")
    if "*" in compact:
        raise ValueError(f"expected one variant, got one for each layer, {text!r}")
    compact = _ALIASES.get(compact.upper(), compact)
    compact = re.sub(r"^\((.*?)\)(\+|/|@|$)", r"\1\2", compact)
    match = _SHAPE.fullmatch(compact)
    if not compact or match is None:
        raise _unknown(text)
    base, group = match["base"], _HEADS.fullmatch(match["base"])
    if match["heads"] and not match["heads"].isdecimal():
        raise ValueError(f"expected a number of KV heads after '/', as in Q-K=V/4, got {text!r}")
    heads = int(match["heads"]) if match["heads"] else None
    if group:
        if heads is not None:
            raise ValueError(f"expected the number of KV heads once, got {text!r}")
        base, heads = ("Q-K=V" if group["tied"] else "QKV"), int(group["count"] or 1)
    sharing = _parse_sharing(_MARK.sub("", base), text)
    options = [option for option in match["options"].split("@") if option]
    marks, terms = _parse_marks(base, sharing, text), _parse_options(options, text)
    plus = bool(match["plus"])
    return Variant(sharing=sharing, num_kv_heads=heads, plus=plus, **marks, **terms)


def parse_label(text: str) -> AnyVariant:
    """Parse one label, or several labels with layer counts such as ``QKV*3,Q-K=V*3``.

    Raises:
        ValueError: as for :func:`parse_variant`, or for invalid layer counts.
    """
    compact = "".join(text.split())
    if "*" not in compact:
        return parse_variant(text)
    runs = [*_RUN.finditer(compact)]
    if sum(len(run[0]) for run in runs) != len(compact) or compact.endswith(","):
        raise ValueError(
            f"expected a number of layers after each variant, as in QKV*3,Q-K=V*3, got {text!r}"
        )
    counts = [int(run["count"]) for run in runs]
    if min(counts) < 1 or sum(counts) > MOST_LAYERS:
        raise ValueError(
            f"expected numbers of layers of at least 1, and at most {MOST_LAYERS:,} layers in all, "
            f"got {text!r}"
        )
    variants = [parse_variant(run["label"]) for run in runs]
    pairs = zip(variants, counts, strict=True)
    joined = join_layers([one for one, count in pairs for _ in range(count)])
    if len({*variants}) == 1:
        raise ValueError(
            f"expected layer counts of at least two different variants, got {text!r}; write "
            f"{format_label(joined)} for all layers"
        )
    return joined


@lru_cache(maxsize=1024)
def canonical_label(text: str) -> str:
    """Return the canonical spelling of a label."""
    return format_label(parse_label(text))


def as_label(given: AnyVariant | str) -> AnyVariant:
    """Parse a label; return a variant, or the variants of layers, unchanged."""
    if isinstance(given, LayerVariants):
        return given
    return parse_label(given) if isinstance(given, str) else as_variant(given)


def as_variant(given: AnyVariant | str) -> Variant:
    """Parse a label; return a variant unchanged."""
    if isinstance(given, Variant):
        return given
    if isinstance(given, LayerVariants):
        # All bad input is a ValueError.
        raise ValueError(  # noqa: TRY004
            f"expected one variant, got one for each layer, {format_label(given)!r}"
        )
    # Callers without type annotations may pass anything, and all bad input is a ValueError.
    if not isinstance(given, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ValueError(  # noqa: TRY004
            f"expected a variant or its label such as 'Q-K=V', got {given!r}"
        )
    return parse_variant(given)


def suggest_labels(text: str) -> tuple[str, ...]:
    """Return the three known labels nearest to ``text``, best first."""
    plain = [sharing.format_label({}) for sharing in SHARINGS]
    tuples = [sharing.format_tuple({}) for sharing in SHARINGS]
    heads = ["MQA", "GQA-4", "GQA-8", "Q-MQA", "Q-GQA-4", "Q-GQA-8"]
    labels = [*plain, "(Q=K-V)+", "(Q=K=V)+", *heads, "Q[residual]-K-V", "Q[map]=K-V", *tuples]
    # If a label and a tuple differ only in case, the label comes last and wins.
    return tuple(near_names("".join(text.split()), reversed(labels), most=3, cutoff=0.4))


def _unknown(text: str) -> ValueError:
    near = suggest_labels(text)
    hint = f"did you mean {' or '.join(near)}?" if near else "`qkvary variants` lists the labels"
    return ValueError(f"expected a variant such as Q-K=V or q,k=v, got {text!r}; {hint}")


def _marks(variant: Variant) -> dict[Source, str]:
    marks: dict[Source, str] = {}
    for source in variant.projections:
        rank = variant.rank(source)
        if rank:
            marks[source] = f"[{rank}]"
    if variant.query_form != "plain":
        source = variant.sharing.query
        marks[source] = f"[{variant.query_form}]" + marks.get(source, "")
    return marks


def _format_options(variant: Variant) -> str:
    text = ""
    for name, (prefix, _) in OPTIONS.items():
        value = getattr(variant, name)
        if value != DEFAULTS[name]:
            text += f"@{prefix}{'' if value is True else value}"
    return text


def _parse_sharing(base: str, whole: str) -> Sharing:
    base = _ALIASES.get(base.upper(), base)
    if "," in base:
        return _parse_tuple(base, whole)
    for sharing in SHARINGS:
        if sharing.format_label({}).upper() == base.upper():
            return sharing
    raise _unknown(whole)


def _parse_tuple(base: str, whole: str) -> Sharing:
    groups = [group.split("=") for group in base.lower().split(",")]
    named = [name for group in groups for name in group if group != [IDENTITY]]
    free = [role for role in "qkv" if role not in named]
    inputs = sum(group == [IDENTITY] for group in groups)
    if sorted(named + free) != sorted("qkv") or inputs != len(free):
        raise ValueError(
            f"expected each of q, k, v once, or x in its place, as in q,k=v or x,k,v, got {whole!r}"
        )
    reads = {name: group[0] for group in groups for name in group} | dict.fromkeys(free, IDENTITY)
    return share(reads["q"], reads["k"], reads["v"])


def _parse_marks(base: str, sharing: Sharing, whole: str) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    letters: dict[str, Source] = {"Q": sharing.query, "K": sharing.key, "V": sharing.value}
    for found in _MARK.finditer(base):
        before, mark = _MARK.sub("", base[: found.start()]).upper(), found[1]
        # The query comes first, even if it is the layer input.
        letter = "Q" if found.start() == 1 and before in ("I", "X") else before[-1:]
        if letter == "Q" and mark in _FORMS:
            fields["query_form"] = mark
            continue
        if mark in _FORMS:
            raise ValueError(
                f"expected the mark [{mark}] on Q, got it on {letter} in {whole!r}"
                f"{_ABSORBED if mark == 'map' else ''}"
            )
        source = letters.get(letter, IDENTITY)
        if source not in ("k", "v"):
            raise ValueError(
                f"expected a rank on a learned key or value, got it on {letter} in {whole!r}"
            )
        if f"{source}_rank" in fields:
            raise ValueError(f"expected one rank on {letter}, got two in {whole!r}")
        fields[f"{source}_rank"] = _parse_rank(mark, whole)
    return fields


def _parse_rank(mark: str, whole: str) -> Rank:
    match = re.fullmatch(r"(r|d/)(\d+)", mark)
    if not match:
        raise ValueError(
            f"expected a mark such as [r16], [d/4], [residual], [residual-gelu] or [map], "
            f"got [{mark}] in {whole!r}"
        )
    return Rank(int(match[2]), of_width=match[1] == "d/")


def _parse_options(options: list[str], whole: str) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for text in (option.lower() for option in options):
        matches = {name: _parse_option(text, *option) for name, option in OPTIONS.items()}
        name = next((name for name, value in matches.items() if value is not None), None)
        if name is None:
            choices = ", ".join(_spell_option(name, *option) for name, option in OPTIONS.items())
            raise ValueError(f"expected one of the options {choices}, got @{text} in {whole!r}")
        if name in fields:
            raise ValueError(f"expected one {name} option, got two in {whole!r}")
        fields[name] = matches[name]
    return fields


def _parse_option(text: str, prefix: str, kind: type[Any] | tuple[str, ...]) -> Any:
    """Return the value of an option, or ``None`` if the text spells a different option."""
    value = text.removeprefix(prefix)
    if not text.startswith(prefix):
        return None
    if isinstance(kind, tuple):
        return value if value in kind else None
    if not re.fullmatch(_VALUES[kind], value):
        return None
    return True if kind is bool else kind(value)


def _spell_option(name: str, prefix: str, kind: type[Any] | tuple[str, ...]) -> str:
    if isinstance(kind, tuple):
        return ", ".join(prefix + word for word in kind)
    if kind in (int, float):
        return f"{prefix}N ({name.replace('_', ' ')})"
    return prefix if kind is bool else f"{prefix}NAME"
