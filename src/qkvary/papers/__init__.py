"""The documents' figures and claims, with verdicts: a folder per document, and one of our own."""

from dataclasses import replace

from qkvary.arch.networks import CROSS_SHARINGS, CrossSharing
from qkvary.arch.variants import QKV

CROSS_SHARINGS["published-code"] = CrossSharing(
    variant=lambda own: replace(QKV, plus=own.plus),
    module="qkvary.papers.key_value.cross_attention",
)
