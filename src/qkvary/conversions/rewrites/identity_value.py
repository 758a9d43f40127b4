"""The value becomes the layer input, in every layer or in one."""

from functools import partial

from qkvary.conversions.identity import rewrite_identity

STATEMENT = "Theorems 4.1, 4.2 and 4.3"
rewrite = partial(rewrite_identity, role="value")
