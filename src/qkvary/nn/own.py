"""Registers score terms, cores and attention layers from a user's own file."""

import re
from collections.abc import Callable
from typing import TypeVar, cast

from qkvary.arch.canonical import file_of
from qkvary.arch.terms import OWN, OwnPart
from qkvary.nn.attention import Attention
from qkvary.nn.kernels import Core
from qkvary.nn.terms import ScoreTerm
from qkvary.text.names import brief

T = TypeVar("T", bound=type[ScoreTerm] | type[Core] | type[Attention])


def own(name: str, words: str) -> Callable[[T], T]:
    """Return a decorator that registers a class, so that labels can name it: ``Q-K=V@own-NAME``.

    A ``ScoreTerm`` changes the scores after all other terms, a ``Core`` replaces the softmax, and
    an ``Attention`` replaces the whole layer. The class may have a ``version``. If it has none, the
    identity of a study's runs depends on the whole file.

    Args:
        name: The name: lowercase letters, digits and ``-``.
        words: A clause that says what the class does, for descriptions of variants.

    Raises:
        ValueError: if the name has other characters, if the class is not a ``ScoreTerm``, ``Core``
            or ``Attention`` or lacks a required method, or if another file has registered the name.
    """
    given = cast("object", name)
    if not isinstance(given, str) or not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", given):
        raise ValueError(f"expected lowercase letters, digits and - as a name, got {brief(given)}")

    def register(made: T) -> T:
        if not issubclass(made, ScoreTerm | Core | Attention):
            # All bad input is a ValueError.
            raise ValueError(  # noqa: TRY004
                f"expected a ScoreTerm, a Core or an Attention for own-{name}, got {made.__name__}"
            )
        for kind, method in ((ScoreTerm, "forward"), (Core, "weights")):
            if issubclass(made, kind) and getattr(made, method) is getattr(kind, method):
                raise ValueError(f"expected the method {method} in {made.__name__}, got none")
        known = OWN.get(name)
        if known is not None and file_of(known.made) != file_of(made):
            raise ValueError(
                f"expected a new name, got {name!r}, which another file has registered"
            )
        OWN[name] = OwnPart(name, words, made)
        return made

    return register
