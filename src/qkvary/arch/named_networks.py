"""The networks that have a name: those of the papers, and those for new work.

A name means the same network wherever one is given: in Python, on the command line and in files.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from types import MappingProxyType
from typing import TypeVar

from qkvary.arch.choices import given_sizes
from qkvary.arch.labels import as_label
from qkvary.arch.networks import LanguageModelConfig
from qkvary.arch.published_networks import (
    PORTABLE,
    gpt_124m,
    gpt_300m,
    gpt_1200m,
    make_portable,
    modern_network,
)
from qkvary.arch.variants import AnyVariant, Variant, map_variants
from qkvary.text.names import find_name, spell, suggest

T = TypeVar("T")


class Lazy(Mapping[str, T]):
    """A mapping whose values are made when they are first used."""

    def __init__(self, makers: Mapping[str, Callable[[], T]]) -> None:
        self._makers, self._made = makers, dict[str, T]()

    def __getitem__(self, name: str) -> T:
        if name not in self._made:
            self._made[name] = self._makers[name]()
        return self._made[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._makers)

    def __len__(self) -> int:
        return len(self._makers)


_identity = partial(gpt_124m, "I-K-V")
# Makes a function that makes the network.
_modern = partial(partial, modern_network)

_MODERN = {
    "lm-100k": _modern(d_model=48, num_heads=4, num_layers=3, max_tokens=128, vocabulary=320),
    "lm-1m": _modern(d_model=128, num_heads=4, num_layers=5, max_tokens=256, vocabulary=320),
    "lm-10m": _modern(d_model=320, num_heads=8, num_layers=8, max_tokens=1024, vocabulary=320),
    "lm-30m": _modern(d_model=384, num_heads=8, num_layers=6, max_tokens=1024),
    "lm-60m": _modern(d_model=512, num_heads=8, num_layers=11, max_tokens=1024),
    "lm-124m": _modern(d_model=768, num_heads=12, num_layers=12, max_tokens=1024),
    "lm-350m": _modern(d_model=1024, num_heads=16, num_layers=24, max_tokens=2048),
    "lm-1b": _modern(d_model=2048, num_heads=32, num_layers=18, max_tokens=2048),
}
_PORTABLE_SIZES = ("lm-1m", "lm-10m", "lm-30m", "lm-60m", "lm-124m", "lm-350m")
PORTABLE_NETWORKS: Mapping[str, tuple[str, str]] = {
    **{f"{name}-portable": (name, PORTABLE) for name in _PORTABLE_SIZES},
    # 512 numbers and 64 rotary ones, as DeepSeek: every kernel for latents has this size.
    "lm-60m-mla": ("lm-60m", "Q-K=V@decoupled-64@kv-norm"),
}
"""The portable networks: the modern one with the same training, and the variant."""


def _portable(name: str, variant: str) -> LanguageModelConfig:
    return make_portable(_MODERN[name](), variant)


NETWORKS: Mapping[str, LanguageModelConfig] = Lazy(
    {
        "lm-300m": gpt_300m,
        "lm-300m-poster": gpt_300m,
        "lm-1.2b": gpt_1200m,
        "gpt2-124m": gpt_124m,
        "gpt2-117m-mlp": partial(gpt_124m, d_ff=2688),
        "gpt2-118m-narrow": partial(gpt_124m, d_model=744),
        "gpt2-117m-identity": _identity,
        "gpt2-124m-identity": partial(gpt_124m, "I-K-V", d_ff=3456),
        "gpt2-117m-identity-derived": partial(gpt_124m, "I-K-V", scale="derived"),
        "gpt2-124m-identity-derived": partial(gpt_124m, "I-K-V", d_ff=3456, scale="derived"),
        "gpt2-156m-identity-untied": partial(_identity, tied_head=False),
        "gpt2-124m-residual": partial(gpt_124m, "Q[residual]-K-V"),
        "gpt2-124m-residual-gelu": partial(gpt_124m, "Q[residual-gelu]-K-V"),
        "gpt2-163m-untied": partial(gpt_124m, tied_head=False),
        "gpt2-124m-decay": gpt_124m,
        "gpt2-124m-scale": partial(gpt_124m, "QKV@t2"),
        "gpt2-124m-decay-scale": partial(gpt_124m, "QKV@t2"),
        **_MODERN,
        **{name: partial(_portable, *form) for name, form in PORTABLE_NETWORKS.items()},
    }
)
"""Every network by name, the papers' first."""

_SIZES = {name.removeprefix("lm-"): name for name in NETWORKS if name.startswith("lm-")}
ALIASES: Mapping[str, str] = MappingProxyType(_SIZES | {"124m": "gpt2-124m"})
"""Sizes as names of networks: ``300M``, ``1.2B`` and ``124M`` are those of the papers."""


def canonical_name(name: str, choices: Iterable[str] = NETWORKS) -> str | None:
    """Return the choice that a name or a size means, in any spelling, or ``None``."""
    return find_name(ALIASES.get(spell(name), name), choices)


def find_network(name: str, variant: AnyVariant | str | None = None) -> LanguageModelConfig:
    """Return the network of a name.

    Args:
        name: A name or a size, such as ``lm-300m`` or ``300M``.
        variant: Its attention, if not its own. Without named positions it keeps the network's.

    Raises:
        ValueError: for an unknown name, or a variant that does not fit the network.
    """
    known = canonical_name(name)
    if known is None:
        raise ValueError(f"expected a network, got {name[:60]!r}; {suggest(name, NETWORKS)}")
    return _vary(NETWORKS[known], variant)


def choose_network(
    given: LanguageModelConfig | str | None,
    sizes: Mapping[str, int | None],
    variant: AnyVariant | str | None = None,
) -> LanguageModelConfig:
    """Return a given network, that of a name, or a modern one of given sizes.

    Args:
        given: The network or its name; or ``None``.
        sizes: The sizes of :func:`modern_network` by name, ``None`` for those not given.
        variant: As for :func:`find_network`.

    Raises:
        ValueError: as :func:`find_network`, for sizes that do not fit each other, a missing one, or
            a network and sizes.
    """
    if isinstance(given, str):
        given = find_network(given)
    own = given_sizes(given, sizes, kind=LanguageModelConfig, required=tuple(sizes))
    return _vary(modern_network(**own) if given is None else given, variant)


def _vary(network: LanguageModelConfig, variant: AnyVariant | str | None) -> LanguageModelConfig:
    if variant is None:
        return network
    own = network.layers[0].variant
    return network.with_variant(keep_positions(as_label(variant), own))


def keep_positions(variant: AnyVariant, own: Variant) -> AnyVariant:
    """Return a variant with the positions of a network's own, if it names none."""
    return map_variants(variant, lambda one: one.keep_positions(own))
