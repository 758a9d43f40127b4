"""Defines studies: settings, variants and seeds, and the runs of all combinations. Torch-free."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal, Self, cast

from qkvary.arch.canonical import ADDED_LATER, stored
from qkvary.arch.labels import canonical_label, format_label, parse_label
from qkvary.arch.named_networks import find_network
from qkvary.arch.networks import LanguageModelConfig, Network
from qkvary.arch.variants import AnyVariant
from qkvary.costs.equal_parameters import match_parameters
from qkvary.storage.errors import UsageError
from qkvary.studies.published_tables import PublishedTable
from qkvary.tasks.config import TaskConfig
from qkvary.tasks.config_parts import check_task
from qkvary.text.names import brief, listed, suggest
from qkvary.text.numbers import check_seed
from qkvary.training.config import ExecutionSettings, RunConfig, TrainingConfig

MOST_SEEDS = 1000
"""Maximum number of seeds of a study. A larger number is most likely a typing error, and listing
its runs would take minutes."""
MOST_NAMED = 5
"""Maximum number of duplicates that an error message names."""


@stored("Setting")
@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """A task, a network size and a training configuration, shared by all variants.

    Tables show averages over the settings of a task, except settings that name a separate
    ``table``. Such settings may have only some of the variants, other network sizes or another
    metric. A run that occurs in two settings is executed only once.
    """

    name: str
    """Name in tables; unique within a study."""
    task: TaskConfig
    """The task."""
    network: Network
    """The network, or its name such as ``lm-10m``. Each variant of the study replaces the variant
    of this network."""
    training: TrainingConfig
    """The training configuration."""
    keep_networks: bool = False
    """Whether the store keeps the trained language models as checkpoints for ``load_checkpoint``.
    Not part of a run's identity."""
    keep_steps: tuple[int, ...] = field(default=(), metadata=ADDED_LATER)
    """Further steps after which the store keeps the network; 0 keeps the initial weights. Not
    part of a run's identity."""
    table: str | None = None
    """Name of the table that shows the setting. Settings with the same name share a table. None for
    the table of the task."""
    variants: tuple[str, ...] | None = None
    """Labels of the variants of the study that the setting uses; None for all."""
    equal_parameters: bool = False
    """Whether to choose each variant's ``d_ff`` so that it has about as many parameters as the
    baseline."""
    metric: str | None = None
    """The metric of the table; None for the metric of the task. Both must agree whether
    higher or lower is better. Learning rates are always chosen by the metric of the task."""
    limits: tuple[str, ...] = ()
    """Sentences about what the setting cannot show. Reports list them before other caveats."""
    note: str = field(default="", metadata=ADDED_LATER)
    """A sentence that is printed below every table of the setting, such as the score of a guess."""

    def __post_init__(self) -> None:
        network: object = self.network
        if isinstance(network, str):
            object.__setattr__(self, "network", find_network(network))
        where = f"setting {self.name!r}: expected"
        kinds = {"task": TaskConfig, "network": Network, "training": TrainingConfig}
        for name, kind in kinds.items():
            part = getattr(self, name)
            # A store could not write a value of another class.
            if not isinstance(part, kind):
                raise UsageError(
                    f"{where} a {name} of the class {kind.__name__} or a subclass, got "
                    f"{type(part).__name__}"
                )
        if self.keep_networks and not isinstance(self.network, LanguageModelConfig):
            raise ValueError(
                f"{where} a language model with keep_networks=True, got "
                f"{type(self.network).__name__}"
            )
        if self.keep_steps and not self.keep_networks:
            raise ValueError(f"{where} keep_networks=True with keep_steps, got keep_networks=False")
        wrong = [step for step in self.keep_steps if not 0 <= step < self.training.steps]
        if wrong or len({*self.keep_steps}) < len(self.keep_steps):
            raise ValueError(
                f"{where} keep_steps from 0 to {self.training.steps - 1} without duplicates, got "
                f"{self.keep_steps}"
            )
        is_special = self.variants is not None or self.equal_parameters or self.metric is not None
        if is_special and self.table is None:
            raise ValueError(
                f"{where} a table name, because variants, equal_parameters or metric is set, got "
                "table=None"
            )

    def network_of(self, variant: AnyVariant, baseline: AnyVariant) -> Network:
        """Return the network of a variant.

        Raises:
            ValueError: if the variant is invalid for this network.
        """
        network = self.network.with_variant(variant)
        if not self.equal_parameters or variant == baseline:
            return network
        return match_parameters(network, self.network.with_variant(baseline))


@stored("Crossing")
@dataclass(frozen=True, slots=True)
class CrossSettingContrast:
    """A comparison of networks from two settings, paired by seed."""

    variant: str
    """Label of the variant."""
    setting: str
    """Name of the variant's setting."""
    reference: str
    """Label of the reference."""
    reference_setting: str
    """Name of the reference's setting."""

    @property
    def sides(self) -> tuple[tuple[str, str], tuple[str, str]]:
        """Two pairs of a label and a setting: the variant's pair, then the reference's pair."""
        return (self.variant, self.setting), (self.reference, self.reference_setting)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """A run of a study, and its place in the tables."""

    setting: str
    """Name of the setting."""
    variant: str
    """Canonical label of the variant."""
    run: RunConfig
    """Configuration of the run."""
    kept_networks: tuple[int | None, ...] = ()
    """Steps after which the store keeps the network. The entry None is the end of training."""

    @property
    def seed(self) -> int:
        """Seed of the run."""
        return self.run.seed

    @property
    def learning_rate(self) -> float:
        """Peak learning rate of the run."""
        return self.run.training.optimizer.learning_rate

    @property
    def run_key(self) -> str:
        """The sha256 that identifies the run in a store."""
        return self.run.run_key

    @property
    def title(self) -> str:
        """A short title of the run."""
        return f"{self.setting} {self.variant} seed {self.seed} lr {self.learning_rate:g}"


def _unique(study: str, what: str, values: Sequence[object]) -> None:
    if not values:
        raise ValueError(f"study {study!r}: expected {what}, got none")
    twice = sorted({str(value) for value in values if values.count(value) > 1})
    if twice:
        raise ValueError(
            f"study {study!r}: expected distinct {what}, got {', '.join(twice[:MOST_NAMED])} twice"
        )


def check_number_of_seeds(number: int) -> None:
    """Refuse a number of seeds so large that listing the seeds would take too long.

    Raises:
        UsageError: if there are more than ``MOST_SEEDS``.
    """
    if number > MOST_SEEDS:
        raise UsageError(f"expected at most {MOST_SEEDS:,} seeds, got {number:,}")


@stored("Study")
@dataclass(frozen=True, kw_only=True)
class Study:
    """A comparison of variants under identical conditions."""

    name: str
    """Short name for the command line."""
    question: str
    """The question that the study answers, in one sentence."""
    description: str
    """Sizes, protocol and source of the experiments."""
    settings: Sequence[Setting]
    """Tasks with their networks and training."""
    variants: Sequence[str]
    """Labels of the variants, in the order of the tables."""
    seeds: Sequence[int]
    """Seeds. Every combination of setting, variant and learning rate has one run per seed."""
    baseline: str = "QKV"
    """Label of the variant with which the others are compared."""
    learning_rates: tuple[float, ...] | None = None
    """If given, each variant is trained with all of these learning rates, and compared at the rate
    with the best validation metric."""
    published: tuple[PublishedTable, ...] = ()
    """The published tables to compare with."""
    contrasts: tuple[tuple[str, str] | CrossSettingContrast, ...] = ()
    """Comparisons in addition to those with the baseline. A pair (variant, reference) is compared
    in every setting that has both. A ``CrossSettingContrast`` compares two settings."""
    device: str = "cpu"
    """Torch name of the device of all runs."""
    dtype: Literal["float32", "float64"] = "float32"
    """Type of the weights of all runs."""

    def __post_init__(self) -> None:
        if not self.name:
            raise ValueError("expected a name for the study, got an empty one")
        for field_name, kinds, expected in (
            ("settings", Setting, "settings"),
            ("variants", str | AnyVariant, "labels"),
            ("seeds", int, "whole numbers"),
        ):
            object.__setattr__(self, field_name, self._read(field_name, kinds, expected))
        _unique(self.name, "settings", tuple(setting.name for setting in self.settings))
        _unique(self.name, "seeds", self.seeds)
        labels = self.labels
        _unique(self.name, "variants", labels)
        if self.learning_rates is not None:
            _unique(self.name, "learning_rates", self.learning_rates)
        self._check_label("a baseline among its variants", self.baseline, labels)
        self._check_settings()
        self._check_contrasts()
        self._check_cross_setting_contrasts()

    def _read(self, field_name: str, kinds: Any, expected: str) -> tuple[Any, ...]:
        """Check the types in a field. Return the field as a tuple, with variants as labels."""
        given = getattr(self, field_name)
        where = f"study {self.name!r}: expected a list of {expected} for {field_name}"
        if not isinstance(given, Sequence) or isinstance(given, str):
            raise UsageError(f"{where}, got {brief(given)}")
        if field_name == "seeds":
            check_number_of_seeds(len(given))
            for seed in given:
                check_seed(seed)
        for one in given:
            if not isinstance(one, kinds):
                raise UsageError(f"{where}, got a list with {brief(one)}")
        return tuple(format_label(one) if isinstance(one, AnyVariant) else one for one in given)

    def _check_label(
        self, expected: str, label: str, choices: Collection[str], setting: str = ""
    ) -> None:
        if canonical_label(label) not in choices:
            raise ValueError(
                f"study {self.name!r}{setting}: expected {expected}, got {label!r}; choices: "
                + ", ".join(choices)
            )

    def pinned(self) -> Self:
        """Return the study with a data fingerprint in every task.

        Missing fingerprints are computed from the data on this machine.
        """
        settings = tuple(replace(one, task=one.task.pinned()) for one in self.settings)
        return self if settings == self.settings else replace(self, settings=settings)

    @property
    def labels(self) -> tuple[str, ...]:
        """The canonical labels of the variants."""
        return tuple(map(canonical_label, self.variants))

    @property
    def pairs(self) -> tuple[tuple[str, str], ...]:
        """The pairs to compare within each setting: the labels of a variant and its reference."""
        pairs = (one for one in self.contrasts if not isinstance(one, CrossSettingContrast))
        return tuple(cast("tuple[str, str]", tuple(map(canonical_label, pair))) for pair in pairs)

    @property
    def cross_setting_contrasts(self) -> tuple[CrossSettingContrast, ...]:
        """The contrasts across settings, with canonical labels."""
        return tuple(
            replace(
                one, variant=canonical_label(one.variant), reference=canonical_label(one.reference)
            )
            for one in self.contrasts
            if isinstance(one, CrossSettingContrast)
        )

    @property
    def limits(self) -> tuple[str, ...]:
        """The sentences that state what the settings cannot show, without duplicates."""
        return tuple(dict.fromkeys(text for setting in self.settings for text in setting.limits))

    def select(
        self, *, tasks: Sequence[str], settings: Sequence[str], variants: Sequence[str]
    ) -> Self:
        """Return the part of the study with some tasks, settings and variants.

        The baseline always stays. A contrast stays if its variants and its settings stay.

        Args:
            tasks: Names of tasks; empty for all.
            settings: Names of settings; empty for all.
            variants: Labels of variants; empty for all.

        Raises:
            ValueError: for a name or label that the study does not have, or if nothing is left.
        """
        known = {
            "task": dict.fromkeys(setting.task.name for setting in self.settings),
            "setting": dict.fromkeys(setting.name for setting in self.settings),
            "variant": dict.fromkeys(self.labels),
        }
        labels = [canonical_label(label) for label in variants]
        given: dict[str, Sequence[str]] = {"task": tasks, "setting": settings, "variant": labels}
        for kind, names in given.items():
            for name in names:
                if name not in known[kind]:
                    raise ValueError(
                        f"study {self.name!r}: expected a {kind} of the study, got {name!r}; "
                        f"{suggest(name, known[kind])}"
                    )
        kept_labels = {*labels, canonical_label(self.baseline)} if labels else set(known["variant"])
        kept = [
            replace(
                setting,
                variants=setting.variants
                and tuple(one for one in setting.variants if canonical_label(one) in kept_labels),
            )
            for setting in self.settings
            if setting.task.name in (tasks or known["task"])
            and setting.name in (settings or known["setting"])
            and set(labels or known["variant"]).intersection(self.variants_of(setting))
        ]
        asked = " and ".join(f"{kind} {listed(some)}" for kind, some in given.items() if some)
        if not kept:
            raise ValueError(f"study {self.name!r}: expected settings with {asked}, got none")
        names = {setting.name for setting in kept}

        def remains(one: tuple[str, str] | CrossSettingContrast) -> bool:
            if not isinstance(one, CrossSettingContrast):
                return kept_labels.issuperset(map(canonical_label, one))
            return all(
                canonical_label(label) in kept_labels and setting in names
                for label, setting in one.sides
            )

        return replace(
            self,
            settings=tuple(kept),
            variants=tuple(label for label in known["variant"] if label in kept_labels),
            contrasts=tuple(filter(remains, self.contrasts)),
            description=f"{self.description} This is the part with {asked}.",
        )

    def variants_of(self, setting: Setting) -> tuple[str, ...]:
        """Return the canonical labels of a setting's variants, in the study's order."""
        if setting.variants is None:
            return self.labels
        limited = set(map(canonical_label, setting.variants))
        return tuple(label for label in self.labels if label in limited)

    def _check_settings(self) -> None:
        tables: dict[str, Setting] = {}
        for setting in self.settings:
            where = f", setting {setting.name!r}"
            for label in setting.variants or ():
                self._check_label("variants of the study", label, self.labels, where)
            if setting.variants == ():
                raise ValueError(f"study {self.name!r}{where}: expected variants, got none")
            # Settings of one table need the same variants; so do all settings that name no table.
            first = tables.setdefault(setting.table or "", setting)
            if self.variants_of(first) != self.variants_of(setting):
                raise ValueError(
                    f"study {self.name!r}{where}: expected the same variants as in the setting "
                    f"{first.name!r} of the same table, got {self.variants_of(setting)}"
                )

    def _check_cross_setting_contrasts(self) -> None:
        settings = {setting.name: setting for setting in self.settings}
        for one in self.cross_setting_contrasts:
            for label, name in one.sides:
                if name not in settings:
                    raise ValueError(
                        f"study {self.name!r}: expected a setting of the study in a contrast, got "
                        f"{name!r}; choices: {', '.join(settings)}"
                    )
                expected = f"a variant of the setting {name!r} in a contrast"
                self._check_label(expected, label, self.variants_of(settings[name]))
            ours, theirs = (
                settings[name].metric or settings[name].task.metric for _, name in one.sides
            )
            if ours != theirs:
                raise ValueError(
                    f"study {self.name!r}: expected the same metric on both sides of a contrast, "
                    f"got {ours} and {theirs}"
                )

    def _check_contrasts(self) -> None:
        for pair in self.pairs:
            if len({*pair}) != 2:
                raise ValueError(
                    f"study {self.name!r}: expected two different variants in each contrast, got "
                    f"{', '.join(pair)}"
                )
            for label in pair:
                expected = f"variants of the study in the contrast {' against '.join(pair)}"
                self._check_label(expected, label, self.labels)
        if self.pairs:
            _unique(self.name, "contrasts", [" against ".join(pair) for pair in self.pairs])

    def with_execution_settings(self, execution: ExecutionSettings) -> Self:
        """Return the study with the same execution settings for all runs."""
        settings = tuple(
            replace(one, training=replace(one.training, execution=execution.config))
            for one in self.settings
        )
        return replace(self, settings=settings, device=execution.device)

    def cells(self) -> tuple[Cell, ...]:
        """Return every run, ordered by seed.

        Because of this order, a study that is stopped early has all runs of its first seeds.

        Raises:
            ValueError: if a variant is invalid for one of the networks.
        """
        return self._cells

    @cached_property
    def _cells(self) -> tuple[Cell, ...]:
        baseline = parse_label(self.baseline)
        cells: list[Cell] = []
        for setting in self.settings:
            trainings = self._trainings(setting)
            kept = (*setting.keep_steps, None) if setting.keep_networks else ()
            for label in self.variants_of(setting):
                try:
                    network = setting.network_of(parse_label(label), baseline)
                except ValueError as error:
                    raise ValueError(
                        f"study {self.name!r}, setting {setting.name!r}, variant {label!r}: {error}"
                    ) from error
                for training in trainings:
                    run = RunConfig(
                        task=setting.task,
                        network=network,
                        training=training,
                        seed=self.seeds[0],
                        device=self.device,
                        dtype=self.dtype,
                    )
                    cells.append(
                        Cell(setting=setting.name, variant=label, run=run, kept_networks=kept)
                    )
        # The network does not depend on the seed, and takes longest to build.
        return tuple(
            replace(cell, run=replace(cell.run, seed=seed)) for seed in self.seeds for cell in cells
        )

    def runs(self) -> dict[str, Cell]:
        """Return the distinct runs by run key. A run that occurs in several settings appears once.

        Raises:
            ValueError: if a variant is invalid for one of the networks, or if a task's
                configuration lacks what a run needs.
        """
        for setting in self.settings:
            check_task(setting.task, setting.network)
        return {cell.run_key: cell for cell in self.cells()}

    def count_runs(self) -> int:
        """Return the number of distinct runs, without computing their keys."""
        of_one_seed = replace(self, seeds=self.seeds[:1]).cells()
        return len({cell.run for cell in of_one_seed}) * len(self.seeds)

    def _trainings(self, setting: Setting) -> tuple[TrainingConfig, ...]:
        """Return the training configurations of a setting, one for each learning rate."""
        optimizer = setting.training.optimizer
        return tuple(
            replace(setting.training, optimizer=replace(optimizer, learning_rate=rate))
            for rate in self.learning_rates or (optimizer.learning_rate,)
        )
