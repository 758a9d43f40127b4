"""The quality that the papers report for their networks; ``plan`` quotes it.

``papers`` has the full tables, and a test compares the two.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Size = Literal["300M", "1.2B"]
"""The sizes of the language models in "Do Transformers Need Three Projections?"."""

BASELINE = "QKV"
"""The variant that published changes of quality are relative to."""

_THREE_PROJECTIONS = "Do Transformers Need Three Projections? (Kayyam et al. 2026)"


@dataclass(frozen=True, slots=True)
class PrintedQuality:
    """The quality of one variant, as printed in a paper."""

    printed: str
    change: str = ""
    """The printed change relative to QKV in percent; empty if the table prints none."""
    tokens_per_second: float | None = None
    """The published training speed in tokens per second."""

    @property
    def value(self) -> float:
        """The result as a number."""
        return float(self.printed)


@dataclass(frozen=True, slots=True, kw_only=True)
class QualityTable:
    """One column of a table of results, as printed in a paper."""

    networks: str
    """The size of the networks, or their tasks."""
    num_heads: int | None
    """Number of query heads of the networks; None if it differs."""
    measure: str
    """The unit of a change: ``perplexity`` (a change in percent), ``accuracy`` or ``nats``."""
    quantity: str
    """The title of the column."""
    source: str
    variants: Mapping[str, PrintedQuality]
    """The results by canonical label of the variant."""


LANGUAGE_MODELS: Mapping[Size, QualityTable] = {
    "300M": QualityTable(
        networks="300M",
        num_heads=16,
        measure="perplexity",
        quantity="change of validation perplexity (percent)",
        source=f"{_THREE_PROJECTIONS}, Table 4 (arXiv 2606.04032)",
        variants={
            "QKV": PrintedQuality("5.11", "", 423_000),
            "Q-K=V": PrintedQuality("5.27", "+3.1", 427_000),
            "Q=K-V": PrintedQuality("5.36", "+4.9", 440_000),
            "Q=K=V": PrintedQuality("6.41", "+25.4", 460_000),
            "GQA-4": PrintedQuality("5.15", "+0.7", 435_000),
            "MQA": PrintedQuality("5.19", "+1.5", 448_000),
            "Q-GQA-4": PrintedQuality("5.32", "+3.9", 442_000),
            "Q-MQA": PrintedQuality("5.36", "+4.8", 455_000),
        },
    ),
    "1.2B": QualityTable(
        networks="1.2B",
        num_heads=32,
        measure="perplexity",
        quantity="change of validation perplexity at 1.2B (percent)",
        source=f"{_THREE_PROJECTIONS}, Table 10 (arXiv 2606.04032)",
        variants={
            "QKV": PrintedQuality("5.004", "0.00"),
            "Q-K=V": PrintedQuality("5.128", "+2.48"),
            "GQA-8": PrintedQuality("5.030", "+0.52"),
            "MQA": PrintedQuality("5.057", "+1.06"),
            "Q-GQA-8": PrintedQuality("5.158", "+3.08"),
            "Q-MQA": PrintedQuality("5.212", "+4.16"),
        },
    ),
}
"""The tables of the language models, by size."""

OTHER_NETWORKS = (
    QualityTable(
        networks="synthetic tasks, 2 and 4 heads",
        num_heads=None,
        measure="accuracy",
        quantity="average of the five tasks (accuracy)",
        source=f"{_THREE_PROJECTIONS}, Table 2 (arXiv 2606.04032)",
        variants={
            "QKV": PrintedQuality("0.851"),
            "Q=K-V": PrintedQuality("0.854"),
            "(Q=K-V)+": PrintedQuality("0.870"),
            "Q-K=V": PrintedQuality("0.850"),
            "Q=K=V": PrintedQuality("0.780"),
            "(Q=K=V)+": PrintedQuality("0.823"),
        },
    ),
    QualityTable(
        networks="124M",
        num_heads=12,
        measure="nats",
        quantity="validation loss at 100k steps (nats per token)",
        source=(
            "[Key,Value] is probably all you need (query identity), version 3, Table 2 "
            "(arXiv 2510.23912)"
        ),
        variants={"QKV": PrintedQuality("3.016"), "I-K-V": PrintedQuality("3.018")},
    ),
)

# ---- what the papers conclude, in the sentences of a plan

SPEED_REMARK = (
    "Paper 1 recommends Q-K=V if training time is the limit (Table 9). Its own Table 4 contradicts "
    "this: MQA trains faster (448k against 427k tokens/s), and its perplexity rises less "
    "(+1.5 % against +3.1 %)."
)
STACKING_REMARK = (
    "K=V can be combined with head sharing, as its authors say. Per saved byte, sharing heads "
    "loses less quality than K=V. With only one KV head left, K=V is the only sharing that "
    "halves the cache again (Q-MQA, {change})."
)
"""The authors' advice; ``{change}`` stands for the change of Q-MQA."""
_SUFFICE = (
    "paper 1 (section 2.5) says that Q=K-V and Q=K=V are sufficient, because the order of the "
    "tokens need not be kept; the published differences are within the standard deviation over "
    "configurations."
)
_NOT_DECODED = (
    "nothing is decoded, so there is no cache to save; sharing saves parameters and projections "
    "only."
)
TASK_REMARKS: Mapping[str, tuple[str, ...]] = {
    "causal": (
        (
            "Causal tasks: the query should differ from the key (at 300M, Q=K-V has +4.9 % "
            "perplexity and Q=K=V +25.4 %)."
        ),
    ),
    "set": (
        f"Set tasks: {_NOT_DECODED}",
        f"Set tasks: {_SUFFICE}",
        (
            "Set tasks: the published gain of the + forms on the anomaly task is suspect, because "
            "the anomaly may always have been at the same position, which the position term can "
            "detect."
        ),
    ),
    "image": (f"Image tasks: {_NOT_DECODED}", f"Image tasks: {_SUFFICE}"),
}
"""The advice of ``plan`` by kind of task."""
