"""Replaces the key by the layer input, in every layer or in one."""

from functools import partial

from qkvary.conversions.bases import rewrite_identity

rewrite = partial(rewrite_identity, role="key")
