"""The value becomes the layer input, in every layer or in one."""

from qkvary.conversions.draft import Draft, RewriteOptions, Rewritten
from qkvary.conversions.identity import rewrite_identity

STATEMENT = "Theorems 4.1, 4.2 and 4.3"


def rewrite(draft: Draft, options: RewriteOptions) -> Rewritten:
    """Return a network in which the value is the layer input."""
    return rewrite_identity(draft, options, "value")
