"""Defines presets: named language models with their training, from the papers and for new work.

A preset consists of network, training, protocol, corpus and tokenizer. Torch-free.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from qkvary.arch.labels import as_label, format_label
from qkvary.arch.named_networks import (
    NETWORKS,
    PORTABLE_NETWORKS,
    canonical_name,
)
from qkvary.arch.networks import LanguageModelConfig
from qkvary.arch.variants import AnyVariant
from qkvary.storage.errors import UsageError
from qkvary.tasks.config import Protocol
from qkvary.text.names import near_names
from qkvary.training.config import (
    Decay,
    ExecutionConfig,
    GuardConfig,
    OptimizerConfig,
    ScheduleConfig,
    TrainingConfig,
)

VOCABULARY_MULTIPLE = 64
"""Vocabulary sizes are rounded up to a multiple of this: in both papers, 50,257 to 50,304."""

THREE_PROJECTIONS = "Kayyam et al. 2026 (Do Transformers Need Three Projections?): text and code"
QUERY_IDENTITY = "Karbevski and Mijoski ([Key,Value] is probably all you need): text and code"
MODERN = (
    "not a paper. The blocks are those of LLaMA. The learning rates and batch sizes are those of "
    "GPT-3, and below 124M parameters those of Pythia"
)


@dataclass(frozen=True, slots=True)
class Remark:
    """A remark for the description of a preset."""

    text: str
    about: Literal["rotary", "decoupled"] | None = None
    """Kind of positions to which the remark applies; None if it applies to all networks."""

    def holds(self, network: LanguageModelConfig) -> bool:
        """Return whether the remark applies to a network.

        If ``about`` names a kind of positions, at least one layer must have that kind.
        """
        variants = [layer.variant for layer in network.layers]
        if self.about == "decoupled":
            return any(variant.decoupled is not None for variant in variants)
        return self.about is None or any(one.positions == self.about for one in variants)


@dataclass(frozen=True, slots=True, kw_only=True)
class Preset:
    """A language model with all settings of its training, except the data folder."""

    name: str
    network: LanguageModelConfig
    training: TrainingConfig
    protocol: Protocol
    corpus: str
    tokenizer: str
    source: str
    variants: tuple[str, ...] = ()
    """Labels of the variants that the source trained."""
    validation_tokens: int | None = None
    """Tokens that the source scored in each validation."""
    reported_step: int | None = None
    """The step whose results the source reports, if it is not the last step."""
    remarks: tuple[Remark, ...] = ()
    """Remarks for the description. Each is shown if it applies to the variant."""
    base: str = ""
    """Name of the preset to use for other variants; empty if this preset accepts them."""

    @property
    def variant(self) -> str:
        """The canonical label of the attention variant of the preset's network."""
        return format_label(self.network.variant)

    @property
    def context(self) -> int:
        """Number of tokens per row."""
        return self.network.max_tokens

    @property
    def tokens_per_step(self) -> int:
        """Number of positions per step, padding included."""
        return self.training.batch_size * self.context

    @property
    def tokens(self) -> int:
        """Number of positions up to the reported step."""
        return self.tokens_per_step * (self.reported_step or self.training.steps)

    @property
    def weight_decay(self) -> float:
        """Weight decay, multiplied by the factor of the variant."""
        return self.training.optimizer.decay_of(self.network.layers[0].variant)

    def with_variant(self, label: AnyVariant | str) -> "Preset":
        """Return the preset with another variant.

        The score scale and the weight decay are those of the new variant. The positions, the norm
        of the heads and the soft cap stay those of the preset if the label does not name them.
        """
        own = self.network.layers[0].variant
        variant = as_label(label).keep_positions(own)
        if variant == self.network.variant:
            return self
        if self.base:
            raise UsageError(
                f"expected {self.variant}, the only variant of the preset {self.name}, got "
                f"{label!r}; for other variants use the preset {self.base}"
            )
        network = self.network.with_variant(variant)
        kept = (remark for remark in self.remarks if remark.holds(network))
        return replace(self, network=network, remarks=tuple(kept))

    def with_vocabulary(self, tokens: int) -> "Preset":
        """Return the preset with a vocabulary of ``tokens``, padded to a multiple of 64."""
        padded = -(-tokens // VOCABULARY_MULTIPLE) * VOCABULARY_MULTIPLE
        return replace(self, network=replace(self.network, vocabulary=padded))


def find_preset(name: str) -> Preset:
    """Return a preset by the name of its network, in spellings such as ``lm-300m`` or ``300M``."""
    known = canonical_name(name, PRESETS)
    if known is None:
        near = near_names(name, PRESETS)
        hint = f"did you mean {near[0]}? " if near else ""
        raise UsageError(f"expected a preset, got {name!r}; {hint}choices: {', '.join(PRESETS)}")
    return PRESETS[known]


def adamw(learning_rate: float, *, decay: Decay) -> OptimizerConfig:
    """Return AdamW with the betas, weight decay and clipping of papers 1 and 3 and of GPT-3."""
    return OptimizerConfig(
        name="adamw",
        learning_rate=learning_rate,
        betas=(0.9, 0.95),
        weight_decay=0.1,
        decay=decay,
        gradient_clip=1.0,
    )


# ---- paper 1

_PADDED = (
    "In the protocol padded-paper, each row is one document of at most 2,048 tokens, padded with "
    "the separator, and the padding counts in the loss, as in the paper"
)
_ALL_SHARINGS = ("QKV", "Q-K=V", "Q=K-V", "Q=K=V", "GQA-4", "MQA", "Q-GQA-4", "Q-MQA")


def _three_projections(
    name: str,
    *remarks: str,
    steps: int,
    micro: int,
    accumulated: int,
    rate: float,
    warmup: int,
    evaluate_every: int,
    validated: int,
    variants: tuple[str, ...] = _ALL_SHARINGS,
    reported_step: int | None = None,
) -> Preset:
    """Return a preset of paper 1.

    AdamW decays all parameters. The learning rate warms up, then falls along a cosine to a tenth.
    A step accumulates ``accumulated`` micro-batches of ``micro`` rows on each of 8 devices. A
    validation scored ``validated`` micro-batches.

    Source: the public code of paper 1.
    """
    network = NETWORKS[name]
    training = TrainingConfig(
        steps=steps,
        batch_size=micro * accumulated * 8,
        execution=ExecutionConfig(micro_batch_size=micro, precision="bf16"),
        optimizer=adamw(rate, decay="all"),
        schedule=ScheduleConfig(name="cosine", warmup_steps=warmup, floor=0.1),
        evaluate_every=evaluate_every,
        guards=GuardConfig(skip_gradient_norm=100.0),
    )
    return Preset(
        name=name,
        network=network,
        training=training,
        protocol="padded-paper",
        corpus="slimpajama",
        tokenizer="gpt2",
        source=THREE_PROJECTIONS,
        variants=variants,
        validation_tokens=validated * micro * network.max_tokens,
        reported_step=reported_step,
        remarks=tuple(map(Remark, (_PADDED, *remarks))),
    )


_PAPER_1 = (
    _three_projections(
        "lm-300m",
        "A step has 24 micro-batches of 6 rows on each of 8 devices. In the paper's conference "
        "poster, both networks are trained with the learning rate, warm-up and gradient "
        "accumulation of the larger one (preset lm-300m-poster)",
        "The published script of Q-GQA has 8 KV heads where the paper's table says 4",
        steps=4_238,
        micro=6,
        accumulated=24,
        rate=2e-4,
        warmup=500,
        evaluate_every=200,
        validated=813,
    ),
    _three_projections(
        "lm-300m-poster",
        "This preset uses the learning rate, warm-up, gradient accumulation and validation "
        "schedule of the paper's conference poster; lm-300m uses those of the public code. The "
        "poster's 10 billion positions in 4,238 steps imply 36 micro-batches of 4 rows on each of "
        "8 devices. Its 10 million validation tokens imply 1,220 batches of 4 rows",
        steps=4_238,
        micro=4,
        accumulated=36,
        rate=6e-5,
        warmup=1_000,
        evaluate_every=500,
        validated=1_220,
    ),
    _three_projections(
        "lm-1.2b",
        "A step has 36 micro-batches of 2 rows on each of 8 devices. The reported results are "
        "those of step 7,500, before the learning rate reaches its floor",
        steps=8_477,
        micro=2,
        accumulated=36,
        rate=6e-5,
        warmup=1_000,
        evaluate_every=500,
        validated=2_441,
        variants=("QKV", "Q-K=V", "GQA-8", "MQA", "Q-GQA-8", "Q-MQA"),
        reported_step=7_500,
    ),
)


# ---- paper 3

_GPT2_TRAINING = TrainingConfig(
    steps=105_000,
    batch_size=12 * 40,
    execution=ExecutionConfig(micro_batch_size=12, precision="bf16", compile=True),
    optimizer=adamw(6e-4, decay="matrices"),
    schedule=ScheduleConfig(name="cosine", warmup_steps=2_000, floor=0.1, decay_steps=600_000),
    evaluate_every=1_000,
)
"""The published cosine schedule has 600,000 steps, far more than were trained."""

_GPT2_VALIDATION = 200 * 12 * 1_024
"""Product of batches, windows per batch and tokens per window. The public code draws new windows
for each validation, the same for all networks. Here they are the first of the validation split."""

_IDENTITY = (
    "Identity query: the scores are halved, and the weight decay of matrices is 2^-5 = 0.1 * "
    "0.3125, as published"
)
_DERIVED = (
    "Identity query: the weight decay of matrices is 2^-5. The scores are multiplied by a scale s "
    "for which s sqrt(d) = 0.55, the value that the paper derives and then rounds to 1/2"
)
_UNTIED = (
    "This network has an untied output head, as the paper's theorem about a single layer requires. "
    "The paper publishes no results for it"
)
_NO_FIGURE = "This variant is in the public code, but the paper has no results for it"
_SAME_TUNING = (
    "This is the baseline with settings that the paper uses for the identity query. The paper "
    "publishes no results for it"
)


def _gpt2(name: str, *remarks: str, weight_decay: float = 0.1) -> Preset:
    optimizer = replace(_GPT2_TRAINING.optimizer, weight_decay=weight_decay)
    is_baseline = name == "gpt2-124m"
    return Preset(
        name=name,
        network=NETWORKS[name],
        training=replace(_GPT2_TRAINING, optimizer=optimizer),
        protocol="packed",
        corpus="openwebtext",
        tokenizer="gpt2",
        source=QUERY_IDENTITY,
        variants=("QKV", "I-K-V") if is_baseline else (),
        validation_tokens=_GPT2_VALIDATION,
        reported_step=100_000,
        remarks=tuple(map(Remark, remarks)),
        base="" if is_baseline else "gpt2-124m",
    )


_PAPER_3 = (
    _gpt2(
        "gpt2-124m",
        "Windows are drawn without replacement here, but with replacement in the public code",
    ),
    _gpt2("gpt2-117m-mlp", "The feed-forward networks are narrower: their width is 3.5 d"),
    _gpt2("gpt2-118m-narrow", "The network has 12 heads of 62 channels"),
    _gpt2("gpt2-117m-identity", _IDENTITY),
    _gpt2(
        "gpt2-124m-identity", _IDENTITY, "The feed-forward networks are wider: their width is 4.5 d"
    ),
    _gpt2("gpt2-117m-identity-derived", _DERIVED),
    _gpt2("gpt2-124m-identity-derived", _DERIVED),
    _gpt2("gpt2-156m-identity-untied", _IDENTITY, _UNTIED),
    _gpt2("gpt2-124m-residual", "The query is q = x + x W", _NO_FIGURE),
    _gpt2("gpt2-124m-residual-gelu", "The query is q = x + gelu(x W)", _NO_FIGURE),
    _gpt2("gpt2-163m-untied", _UNTIED),
    _gpt2("gpt2-124m-decay", _SAME_TUNING, weight_decay=2**-5),
    _gpt2("gpt2-124m-scale", _SAME_TUNING),
    _gpt2("gpt2-124m-decay-scale", _SAME_TUNING, weight_decay=2**-5),
)


# ---- for new work

_MODERN_REMARK = Remark(
    "Half of each head's channels have rotary positions; if the value shares the key's projection, "
    "the output is rotated back (the option value_rope is set to counter)",
    about="rotary",
)

_PORTABLE_REMARK = Remark(
    "key and value are one normalised tensor, and one rotated key serves all heads: latent "
    "attention, which inference engines support",
    about="decoupled",
)

_CHINCHILLA = "Training uses 20 tokens per parameter, as in the Chinchilla paper"


def _modern(
    name: str,
    steps: int,
    rows: int,
    micro: int,
    rate: float,
    *remarks: str,
    corpus: str = "fineweb",
    tokenizer: str = "gpt2",
) -> Preset:
    """Return a preset with ``rows`` rows per step, in micro-batches of ``micro`` rows."""
    return Preset(
        name=name,
        network=NETWORKS[name],
        training=TrainingConfig(
            steps=steps,
            batch_size=rows,
            execution=ExecutionConfig(
                micro_batch_size=micro, precision="full" if tokenizer == "bytes" else "bf16"
            ),
            optimizer=adamw(rate, decay="matrices"),
            schedule=ScheduleConfig(name="cosine", warmup_steps=max(100, steps // 100), floor=0.1),
            evaluate_every=250,
        ),
        protocol="packed",
        corpus=corpus,
        tokenizer=tokenizer,
        source=MODERN,
        remarks=(_MODERN_REMARK, *map(Remark, remarks or (_CHINCHILLA,))),
    )


_MODERN_SIZES = (
    _modern(
        "lm-100k",
        960,
        16,
        16,
        3e-3,
        "This preset is for trying things out: training takes about two minutes on one core",
        _CHINCHILLA,
        corpus="tinystories",
        tokenizer="bytes",
    ),
    _modern(
        "lm-1m",
        1_280,
        16,
        16,
        3e-3,
        "Training takes minutes on two cores. It uses 5 tokens per parameter, a quarter of the "
        "number in the Chinchilla paper",
        corpus="tinystories",
        tokenizer="bytes",
    ),
    _modern(
        "lm-10m",
        3_060,
        64,
        8,
        1e-3,
        "Tokens are bytes, because the token table of GPT-2 alone would have more parameters than "
        "the rest of the network",
        _CHINCHILLA,
        corpus="english-novels",
        tokenizer="bytes",
    ),
    _modern("lm-30m", 4_570, 128, 16, 1e-3),
    _modern("lm-60m", 4_620, 256, 16, 1e-3),
    _modern("lm-124m", 4_720, 512, 16, 6e-4),
    _modern("lm-350m", 13_550, 256, 8, 3e-4),
    _modern("lm-1b", 19_340, 512, 4, 2e-4),
)


_STATED = {preset.name: preset for preset in (*_PAPER_1, *_PAPER_3, *_MODERN_SIZES)}
PRESETS: Mapping[str, Preset] = _STATED | {
    name: replace(
        _STATED[like],
        name=name,
        network=NETWORKS[name],
        remarks=(_PORTABLE_REMARK, *_STATED[like].remarks[1:]),
    )
    for name, (like, _) in PORTABLE_NETWORKS.items()
}
