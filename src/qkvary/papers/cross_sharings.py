"""Registers ``cross_sharing="published-code"``: cross attention as in paper 2's public code."""

from dataclasses import replace
from typing import Any

from qkvary.arch.attention import AttentionConfig
from qkvary.arch.networks import CROSS_SHARINGS, CrossSharing
from qkvary.arch.variants import QKV


def _make_published(own: AttentionConfig, cross: AttentionConfig) -> Any:
    # Configurations are read without torch.
    from qkvary.papers.key_value.cross_attention import make_cross

    return make_cross(own, cross)


CROSS_SHARINGS["published-code"] = CrossSharing(
    variant=lambda own: replace(QKV, plus=own.plus), make=_make_published
)
