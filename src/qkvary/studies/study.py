"""A study as a value: settings x variants x seeds, and the runs that this makes.

Knows nothing of how runs are executed or stored. Torch-free.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

from qkvary.arch.canonical import stored
from qkvary.arch.labels import format_label, parse_variant
from qkvary.arch.networks import LanguageModelConfig, Network
from qkvary.arch.variants import Variant
from qkvary.costs.equal_parameters import match_parameters
from qkvary.tasks.config import TaskConfig
from qkvary.training.config import RunConfig, TrainingConfig


@stored("Setting")
@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One task with one network size and one way of training, for every variant alike.

    A setting is averaged with the others of its task. One that asks something else (only some
    variants, other sizes, another score) says so with a ``table`` of its own, apart from those. A
    run whose configuration is the same in two settings is made once and stands in both.
    """

    name: str
    """Names the setting in tables; unique within a study."""
    task: TaskConfig
    """What is asked."""
    network: Network
    """The network; the study puts each variant in place of its own."""
    training: TrainingConfig
    """How it learns."""
    keep_networks: bool = False
    """Whether the store keeps the trained networks as checkpoints that ``load_checkpoint`` reads.
    Of language models only, and not a part of what names a run."""
    table: str | None = None
    """The table in which it stands, with others that name the same; None for its task's."""
    variants: tuple[str, ...] | None = None
    """Labels out of the study's that the setting is limited to; None for all."""
    equal_parameters: bool = False
    """Whether each variant's ``d_ff`` is chosen so that it has the parameters of the baseline, as
    nearly as possible: what sharing saves is given to the feed-forward networks."""
    metric: str | None = None
    """The score that the table shows, where it is not the task's own; smaller is better, or larger,
    as with that. A learning rate is chosen by the task's own."""
    limits: tuple[str, ...] = ()
    """What it cannot tell: a reader finds it before all other caveats."""

    def __post_init__(self) -> None:
        if self.keep_networks and not isinstance(self.network, LanguageModelConfig):
            raise ValueError(
                f"setting {self.name!r}: expected a language model where networks are kept, got "
                f"{type(self.network).__name__}"
            )
        special = [
            name
            for name, given in (
                ("variants", self.variants is not None),
                ("equal_parameters", self.equal_parameters),
                ("metric", self.metric is not None),
            )
            if given
        ]
        if special and self.table is None:
            raise ValueError(
                f"setting {self.name!r}: expected a table of its own with {', '.join(special)}, "
                "got none"
            )

    def network_of(self, variant: Variant, baseline: Variant) -> Network:
        """The network of one variant here.

        Raises:
            ValueError: if the variant has no meaning in this network.
        """
        network = self.network.with_variant(variant)
        if not self.equal_parameters or variant == baseline:
            return network
        return match_parameters(network, self.network.with_variant(baseline))


@stored("Crossing")
@dataclass(frozen=True, slots=True, kw_only=True)
class Crossing:
    """Two networks of different settings that are compared directly, seed by seed."""

    variant: str
    """Label of the first."""
    setting: str
    """Its setting."""
    reference: str
    """Label of the other."""
    reference_setting: str
    """Its setting."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One run of a study, and where it stands in the tables."""

    setting: str
    """Name of the setting."""
    variant: str
    """Canonical label of the variant."""
    seed: int
    """Seed of the run."""
    learning_rate: float
    """Peak learning rate of the run."""
    run: RunConfig
    """The run itself."""
    keep_network: bool = False
    """Whether the store keeps the trained network as a checkpoint."""

    @property
    def run_key(self) -> str:
        """The sha256 under which a store keeps this run."""
        return self.run.run_key()

    @property
    def title(self) -> str:
        """The run in a few words, for people."""
        return f"{self.setting} {self.variant} seed {self.seed} lr {self.learning_rate:g}"


def _unique(study: str, what: str, values: tuple[object, ...]) -> None:
    if not values:
        raise ValueError(f"study {study!r}: expected at least one of {what}, got none")
    twice = sorted({str(value) for value in values if values.count(value) > 1})
    if twice:
        raise ValueError(f"study {study!r}: {what} hold the same value twice: {', '.join(twice)}")


@stored("Study")
@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """Variants compared under identical conditions."""

    name: str
    """Short name, as typed on the command line."""
    question: str
    """What the study asks, in one sentence."""
    description: str
    """How it asks: sizes, protocol, source."""
    settings: tuple[Setting, ...]
    """Tasks with their networks and training."""
    variants: tuple[str, ...]
    """Labels, in the order of the tables."""
    seeds: tuple[int, ...]
    """Every cell is run once for each."""
    baseline: str = "QKV"
    """Label of the variant that the others are compared with."""
    learning_rates: tuple[float, ...] | None = None
    """Where given, each variant is compared at its own best of these, chosen on validation by the
    task's own metric."""
    published: tuple[str, ...] = ()
    """Names of the published tables to set beside."""
    contrasts: tuple[tuple[str, str] | Crossing, ...] = ()
    """What is compared directly, besides the baseline: pairs (variant, reference) in every setting
    that has both, and pairs over settings."""
    device: str = "cpu"
    """Where all runs compute, as torch names it."""
    dtype: Literal["float32", "float64"] = "float32"
    """Type of the weights of all runs."""

    def __post_init__(self) -> None:
        if not self.name:
            raise ValueError("a study needs a name, got an empty one")
        _unique(self.name, "settings", tuple(setting.name for setting in self.settings))
        _unique(self.name, "seeds", self.seeds)
        labels = tuple(format_label(parse_variant(label)) for label in self.variants)
        _unique(self.name, "variants", labels)
        if self.learning_rates is not None:
            _unique(self.name, "learning_rates", self.learning_rates)
        if format_label(parse_variant(self.baseline)) not in labels:
            raise ValueError(
                f"study {self.name!r}: the baseline {self.baseline!r} is not among its variants: "
                + ", ".join(labels)
            )
        self._check_settings(labels)
        self._check_contrasts(labels)
        self._check_crossings()

    @property
    def pairs(self) -> tuple[tuple[str, str], ...]:
        """The contrasts within settings."""
        return tuple(one for one in self.contrasts if not isinstance(one, Crossing))

    @property
    def crossings(self) -> tuple[Crossing, ...]:
        """The contrasts over settings."""
        return tuple(one for one in self.contrasts if isinstance(one, Crossing))

    @property
    def limits(self) -> tuple[str, ...]:
        """What the settings cannot tell, each sentence once."""
        return tuple(dict.fromkeys(text for setting in self.settings for text in setting.limits))

    def variants_of(self, setting: Setting) -> tuple[str, ...]:
        """The canonical labels of the variants of a setting, in the order of the study's."""
        labels = tuple(format_label(parse_variant(label)) for label in self.variants)
        if setting.variants is None:
            return labels
        limited = {format_label(parse_variant(label)) for label in setting.variants}
        return tuple(label for label in labels if label in limited)

    def _check_settings(self, labels: tuple[str, ...]) -> None:
        tables: dict[str, Setting] = {}
        for setting in self.settings:
            where = f"study {self.name!r}, setting {setting.name!r}"
            given = () if setting.variants is None else setting.variants
            for label in given:
                if format_label(parse_variant(label)) not in labels:
                    raise ValueError(
                        f"{where}: {label!r} is not among the variants of the study: "
                        + ", ".join(labels)
                    )
            if setting.variants is not None and not given:
                raise ValueError(f"{where}: expected at least one of variants, got none")
            if setting.table is None:
                continue
            first = tables.setdefault(setting.table, setting)
            if self.variants_of(first) != self.variants_of(setting):
                raise ValueError(
                    f"{where}: expected the variants of {first.name!r}, which stands in the same "
                    f"table {setting.table!r}, got others"
                )

    def _check_crossings(self) -> None:
        settings = {setting.name: setting for setting in self.settings}
        for one in self.crossings:
            for label, name in (
                (one.variant, one.setting),
                (one.reference, one.reference_setting),
            ):
                if name not in settings:
                    raise ValueError(
                        f"study {self.name!r}: {name!r} of a crossing is not among its settings: "
                        + ", ".join(settings)
                    )
                there = self.variants_of(settings[name])
                if format_label(parse_variant(label)) not in there:
                    raise ValueError(
                        f"study {self.name!r}: {label!r} of a crossing is not in the setting "
                        f"{name!r}: {', '.join(there)}"
                    )
            ours, theirs = (
                setting.metric or setting.task.metric
                for setting in (settings[one.setting], settings[one.reference_setting])
            )
            if ours != theirs:
                raise ValueError(
                    f"study {self.name!r}: expected one score on both sides of a crossing, got "
                    f"{ours} and {theirs}"
                )

    def _check_contrasts(self, labels: tuple[str, ...]) -> None:
        if not self.pairs:
            return
        pairs = [tuple(format_label(parse_variant(label)) for label in pair) for pair in self.pairs]
        _unique(self.name, "contrasts", tuple(" against ".join(pair) for pair in pairs))
        for pair in pairs:
            if len(pair) != 2:
                raise ValueError(
                    f"study {self.name!r}: expected a variant and its reference in each contrast, "
                    f"got {len(pair)}: {', '.join(pair)}"
                )
            for label in pair:
                if label not in labels:
                    raise ValueError(
                        f"study {self.name!r}: {label!r} of the contrast {' against '.join(pair)} "
                        f"is not among its variants: {', '.join(labels)}"
                    )
            if pair[0] == pair[1]:
                raise ValueError(
                    f"study {self.name!r}: expected two different variants in a contrast, "
                    f"got {pair[0]} twice"
                )

    def cells(self) -> tuple[Cell, ...]:
        """Return every run, seeds outermost so that a stopped study is complete in few seeds.

        Raises:
            ValueError: if a variant has no meaning in one of the networks.
        """
        return tuple(
            cell
            for seed in self.seeds
            for setting in self.settings
            for cell in self._row(setting, seed)
        )

    def _row(self, setting: Setting, seed: int) -> Iterator[Cell]:
        rates = self.learning_rates or (setting.training.optimizer.learning_rate,)
        baseline = parse_variant(self.baseline)
        for label in self.variants_of(setting):
            variant = parse_variant(label)
            try:
                network = setting.network_of(variant, baseline)
            except ValueError as error:
                raise ValueError(
                    f"study {self.name!r}, setting {setting.name!r}, variant {label!r}: {error}"
                ) from error
            for rate in rates:
                optimizer = replace(setting.training.optimizer, learning_rate=rate)
                training = replace(setting.training, optimizer=optimizer)
                run = RunConfig(
                    task=setting.task,
                    network=network,
                    training=training,
                    seed=seed,
                    device=self.device,
                    dtype=self.dtype,
                )
                yield Cell(
                    setting=setting.name,
                    variant=format_label(variant),
                    seed=seed,
                    learning_rate=rate,
                    run=run,
                    keep_network=setting.keep_networks,
                )
